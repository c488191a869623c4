//! How byte-level vocabularies spell bytes: one printable character for each of the 256.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the others follow from U+0100 on, in order.
//! Source: the byte encoder published with GPT-2.

fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The character that spells a byte.
pub(super) fn char_of(byte: u8) -> char {
    if stands_for_itself(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !stands_for_itself(other)).count();
    char::from_u32(0x100 + before as u32).expect("at most U+0143")
}

/// The bytes that a token spells. A character outside the alphabet, which only added tokens have, keeps
/// its own UTF-8.
pub(super) fn decode(token: &str) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(token.len());
    for spelled in token.chars() {
        match byte_of(spelled) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(spelled.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes.into()
}

fn byte_of(spelled: char) -> Option<u8> {
    let number = u32::from(spelled);
    match u8::try_from(number) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        // 68 bytes do not stand for themselves: 0 to 32, 127 to 160 and 173.
        Err(_) => match number - 0x100 {
            index @ 0..=32 => Some(index as u8),
            index @ 33..=66 => Some((index - 33 + 127) as u8),
            67 => Some(173),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255u8 {
            let spelled = char_of(byte);
            assert_eq!(byte_of(spelled), Some(byte), "{spelled:?}");
            assert!(seen.insert(spelled));
        }
        assert_eq!([char_of(0), char_of(b' '), char_of(b'\n'), char_of(173)], ['Ā', 'Ġ', 'Ċ', '\u{143}']);
        assert_eq!(byte_of('\u{144}'), None);
        assert_eq!(byte_of(' '), None);
    }
}
