//! Parsing: every number of the file is checked before it is used.

use super::cursor::Cursor;
use super::{
    ALIGNMENT_DEFAULT, ALIGNMENT_KEY, Gguf, GgufError, KEY_BYTES_MAX, MAGIC, NAME_BYTES_MAX, TensorInfo,
    VERSION, Value,
};
use crate::backend::SharedBytes;
use ssmgraph_ops::{AXES, DType, Layout};
use std::collections::HashMap;

/// Length, one byte of key, type, one byte of value.
const KEY_ENTRY_BYTES_MIN: usize = 8 + 1 + 4 + 1;
/// Length, one byte of name, axis count, type, offset.
const TENSOR_ENTRY_BYTES_MIN: usize = 8 + 1 + 4 + 4 + 8;

pub(super) fn parse(shared: SharedBytes) -> Result<Gguf, GgufError> {
    let bytes = (*shared).as_ref();
    let version = version(bytes)?;
    let mut cursor = Cursor::new(bytes, MAGIC.len() + size_of::<u32>());
    let tensor_count = cursor.count(TENSOR_ENTRY_BYTES_MIN, || "tensors".to_string())?;
    let key_count = cursor.count(KEY_ENTRY_BYTES_MIN, || "keys".to_string())?;

    let (keys, key_index) = keys(&mut cursor, key_count)?;
    let alignment = match key_index.get(ALIGNMENT_KEY) {
        Some(&index) => alignment(&keys[index].1)?,
        None => ALIGNMENT_DEFAULT,
    };

    let mut entries = Vec::with_capacity(tensor_count);
    let mut tensor_index = HashMap::with_capacity(tensor_count);
    for index in 0..tensor_count {
        let entry = tensor_entry(&mut cursor, index)?;
        if tensor_index.insert(entry.name.clone(), index).is_some() {
            return Err(entry.error("is there twice".to_string()));
        }
        entries.push(entry);
    }

    // No overflow: both are at most the length of a slice, and the alignment is below 2^32.
    let data_start = cursor.offset().next_multiple_of(alignment);
    let tensors: Vec<TensorInfo> = entries
        .into_iter()
        .map(|entry| entry.place(data_start, alignment, bytes.len()))
        .collect::<Result<_, _>>()?;
    check_disjoint(&tensors)?;
    Ok(Gguf { bytes: shared.clone(), version, alignment, keys, key_index, tensors, tensor_index })
}

fn version(bytes: &[u8]) -> Result<u32, GgufError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(GgufError::NotGguf { found: bytes.iter().take(MAGIC.len()).copied().collect() });
    }
    let version = Cursor::new(bytes, MAGIC.len()).u32(|| "version".to_string())?;
    match version {
        2 | VERSION => Ok(version),
        _ if version & 0xffff == 0 && version != 0 => {
            Err(GgufError::BigEndian { version: version.swap_bytes() })
        }
        _ => Err(GgufError::Version { version }),
    }
}

type Keys = (Vec<(String, Value)>, HashMap<String, usize>);

fn keys(cursor: &mut Cursor<'_>, count: usize) -> Result<Keys, GgufError> {
    let mut keys = Vec::with_capacity(count);
    let mut key_index = HashMap::with_capacity(count);
    for index in 0..count {
        let at = cursor.offset();
        let key = name(cursor, KEY_BYTES_MAX, || format!("key {index}"))?;
        let id = cursor.u32(|| format!("value type of key \"{key}\""))?;
        let value = Value::read(id, &key, cursor)?;
        if key_index.insert(key.clone(), index).is_some() {
            return Err(GgufError::Malformed { offset: at, what: format!("key \"{key}\" is there twice") });
        }
        keys.push((key, value));
    }
    Ok((keys, key_index))
}

/// A text that is not empty.
fn name(cursor: &mut Cursor<'_>, bytes_max: usize, what: impl Fn() -> String) -> Result<String, GgufError> {
    let at = cursor.offset();
    let bytes = cursor.string(bytes_max, &what)?;
    match std::str::from_utf8(bytes) {
        Ok("") => Err(GgufError::Malformed { offset: at, what: format!("{} has an empty name", what()) }),
        Ok(text) => Ok(text.to_string()),
        Err(_) => Err(GgufError::Malformed {
            offset: at,
            what: format!("{} has a name that is not UTF-8: {:?}", what(), String::from_utf8_lossy(bytes)),
        }),
    }
}

fn alignment(value: &Value) -> Result<usize, GgufError> {
    let fits = value.as_integer().and_then(|integer| u32::try_from(integer).ok());
    match fits {
        Some(bytes) if bytes.is_power_of_two() && bytes >= 8 => Ok(bytes as usize),
        _ => Err(GgufError::WrongValue {
            key: ALIGNMENT_KEY.to_string(),
            found: value.to_string(),
            expected: "a power of two from 8 on".to_string(),
        }),
    }
}

/// A tensor as the file announces it, before its place is checked.
struct Entry {
    /// Where the entry begins, for errors.
    at: usize,
    name: String,
    layout: Layout,
    /// From the start of the tensor data.
    offset: u64,
}

impl Entry {
    fn error(&self, what: String) -> GgufError {
        GgufError::Malformed { offset: self.at, what: format!("tensor \"{}\" {what}", self.name) }
    }

    fn place(self, data_start: usize, alignment: usize, file_bytes: usize) -> Result<TensorInfo, GgufError> {
        if !self.offset.is_multiple_of(alignment as u64) {
            return Err(self.error(format!("has offset {}, expected a multiple of {alignment}", self.offset)));
        }
        let bytes = self.layout.span_bytes();
        let start = usize::try_from(self.offset).ok().and_then(|offset| data_start.checked_add(offset));
        let fits = start
            .filter(|&start| bytes == 0 || start.checked_add(bytes).is_some_and(|end| end <= file_bytes));
        match fits {
            // An empty tensor may be announced past the last byte; it gets a place that can be sliced.
            Some(start) => {
                Ok(TensorInfo { name: self.name, layout: self.layout, offset: start.min(file_bytes) })
            }
            None => Err(self.error(format!(
                "{} has {bytes} bytes at offset {} of the data, but the file has {} bytes of data",
                self.layout,
                self.offset,
                file_bytes.saturating_sub(data_start)
            ))),
        }
    }
}

fn tensor_entry(cursor: &mut Cursor<'_>, index: usize) -> Result<Entry, GgufError> {
    let at = cursor.offset();
    let name = name(cursor, NAME_BYTES_MAX, || format!("tensor {index}"))?;
    let refuse =
        |what: String| GgufError::Malformed { offset: at, what: format!("tensor \"{name}\" {what}") };
    let axes = cursor.u32(|| format!("axis count of tensor \"{name}\""))?;
    if axes as usize > AXES {
        return Err(refuse(format!("has {axes} axes, at most {AXES} are possible")));
    }
    let mut ne = [1usize; AXES];
    for (axis, count) in ne.iter_mut().enumerate().take(axes as usize) {
        let found = cursor.u64(|| format!("ne[{axis}] of tensor \"{name}\""))?;
        // The format's counts have a sign; a negative one must not hide behind a zero on another axis.
        *count = (isize::try_from(found).ok()).map(isize::unsigned_abs).ok_or_else(|| {
            refuse(format!("has ne[{axis}] = {}, expected 0 to {}", found as i64, isize::MAX))
        })?;
    }
    let id = cursor.u32(|| format!("type of tensor \"{name}\""))?;
    let dtype = DType::from_gguf_id(id)
        .ok_or_else(|| refuse(format!("has the type number {id}, which is unknown or was removed")))?;
    let layout = Layout::contiguous(dtype, &ne).map_err(|error| refuse(format!("cannot be: {}", error.0)))?;
    let offset = cursor.u64(|| format!("offset of tensor \"{name}\""))?;
    Ok(Entry { at, name, layout, offset })
}

fn check_disjoint(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().filter(|t| !t.layout.is_empty()).collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        let (before, after) = (pair[0].range(), pair[1].range());
        if after.start < before.end {
            return Err(GgufError::Malformed {
                offset: after.start,
                what: format!(
                    "tensor \"{}\" begins inside tensor \"{}\", which ends at byte {}",
                    pair[1].name, pair[0].name, before.end
                ),
            });
        }
    }
    Ok(())
}
