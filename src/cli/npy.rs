//! Writing arrays in NumPy's format, version 1.0.

use std::io::{self, Write};

/// The header of a little-endian `f32` array in C order, padded so that the data starts at a multiple of 64.
fn header(rows: usize, columns: usize) -> Vec<u8> {
    let mut dictionary =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let unpadded = 10 + dictionary.len() + 1;
    dictionary.push_str(&" ".repeat(unpadded.next_multiple_of(64) - unpadded));
    dictionary.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    let length = u16::try_from(dictionary.len()).expect("two numbers are a short text");
    header.extend(length.to_le_bytes());
    header.extend(dictionary.bytes());
    header
}

/// Writes `values` as rows of `columns`.
///
/// Errors: those of `to`.
pub fn write(to: &mut impl Write, columns: usize, values: &[f32]) -> io::Result<()> {
    to.write_all(&header(values.len() / columns.max(1), columns))?;
    values.iter().try_for_each(|value| to.write_all(&value.to_le_bytes()))?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_padded_header_and_the_values() {
        let mut file = Vec::new();
        write(&mut file, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, -6.0]).unwrap();
        assert_eq!(&file[..8], b"\x93NUMPY\x01\x00");
        let header_len = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
        assert_eq!(header_len % 64, 0);
        let text = std::str::from_utf8(&file[10..header_len]).unwrap();
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
        assert!(text.ends_with('\n'));
        assert_eq!(file.len(), header_len + 24);
        assert_eq!(&file[file.len() - 4..], (-6.0f32).to_le_bytes());
    }
}
