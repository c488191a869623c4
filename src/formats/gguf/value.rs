//! Metadata values: scalars, strings and flat arrays of them.

use super::cursor::Cursor;
use super::error::GgufError;
use std::fmt;

/// GGUF's number for arrays; strings are 8 and everything else is a number or a flag.
const ARRAY_ID: u32 = 9;

/// A string of the file. It should be UTF-8; that is checked when it is read as text, so that a damaged
/// token does not keep a model from running.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Text(pub Vec<u8>);

impl Text {
    /// The text, unless the bytes are not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text(text.as_bytes().to_vec())
    }
}

/// Declares the element types once: variant, Rust type, GGUF number, printed name, bytes at least.
macro_rules! values {
    ($($(#[$doc:meta])* $variant:ident($rust:ty) = $id:literal, $name:literal, $bytes_min:literal;)*) => {
        /// The value of a metadata key.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Value {
            $($(#[$doc])* $variant($rust),)*
            /// A flat array; arrays of arrays are refused.
            Array(Array),
        }

        /// An array of values of one type.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Array { $($(#[$doc])* $variant(Vec<$rust>),)* }

        impl Value {
            /// The type's number in a file.
            pub(super) fn id(&self) -> u32 {
                match self { $(Value::$variant(_) => $id,)* Value::Array(_) => ARRAY_ID }
            }

            /// The type's name, such as `u32` or `string[151936]`.
            pub fn type_name(&self) -> String {
                match self {
                    $(Value::$variant(_) => $name.to_string(),)*
                    Value::Array(array) => array.type_name(),
                }
            }

            /// Reads a value of the type with this number.
            pub(super) fn read(id: u32, key: &str, from: &mut Cursor<'_>) -> Result<Value, GgufError> {
                match id {
                    $($id => Ok(Value::$variant(<$rust>::take(key, from)?)),)*
                    ARRAY_ID => Ok(Value::Array(Array::read(key, from)?)),
                    _ => Err(from.error(format!("key \"{key}\" has value type {id}, expected 0 to 12"))),
                }
            }

            pub(super) fn write(&self, to: &mut Vec<u8>) {
                match self {
                    $(Value::$variant(value) => value.put(to),)*
                    Value::Array(array) => array.write(to),
                }
            }
        }

        impl Array {
            /// Number of elements.
            pub fn len(&self) -> usize {
                match self { $(Array::$variant(values) => values.len(),)* }
            }

            /// The type's name, such as `string[151936]`.
            pub fn type_name(&self) -> String {
                match self { $(Array::$variant(values) => format!(concat!($name, "[{}]"), values.len()),)* }
            }

            /// One element as a scalar; `None` past the end.
            pub fn get(&self, index: usize) -> Option<Value> {
                match self { $(Array::$variant(values) => values.get(index).cloned().map(Value::$variant),)* }
            }

            fn read(key: &str, from: &mut Cursor<'_>) -> Result<Array, GgufError> {
                let id = from.u32(|| format!("element type of key \"{key}\""))?;
                let bytes_min: usize = match id {
                    $($id => $bytes_min,)*
                    ARRAY_ID => return Err(from.error(format!("key \"{key}\" is an array of arrays"))),
                    _ => {
                        return Err(from.error(format!(
                            "key \"{key}\" has array elements of type {id}, expected 0 to 8 or 10 to 12"
                        )));
                    }
                };
                // The count is checked against the bytes that are left before anything is reserved for it.
                let count = from.count(bytes_min, || format!("elements of key \"{key}\""))?;
                match id {
                    $($id => (0..count)
                        .map(|_| <$rust>::take(key, from))
                        .collect::<Result<Vec<_>, _>>()
                        .map(Array::$variant),)*
                    _ => unreachable!("other types were refused above"),
                }
            }

            fn write(&self, to: &mut Vec<u8>) {
                match self {
                    $(Array::$variant(values) => {
                        to.extend_from_slice(&u32::to_le_bytes($id));
                        to.extend_from_slice(&(values.len() as u64).to_le_bytes());
                        values.iter().for_each(|value| value.put(to));
                    })*
                }
            }
        }

        $(impl From<$rust> for Value {
            fn from(value: $rust) -> Value { Value::$variant(value) }
        }
        impl From<Vec<$rust>> for Value {
            fn from(values: Vec<$rust>) -> Value { Value::Array(Array::$variant(values)) }
        })*
    };
}

values! {
    /// 8-bit unsigned integer.
    U8(u8) = 0, "u8", 1;
    /// 8-bit signed integer.
    I8(i8) = 1, "i8", 1;
    /// 16-bit unsigned integer.
    U16(u16) = 2, "u16", 2;
    /// 16-bit signed integer.
    I16(i16) = 3, "i16", 2;
    /// 32-bit unsigned integer.
    U32(u32) = 4, "u32", 4;
    /// 32-bit signed integer.
    I32(i32) = 5, "i32", 4;
    /// 32-bit float.
    F32(f32) = 6, "f32", 4;
    /// Flag: one byte, 0 or 1.
    Bool(bool) = 7, "bool", 1;
    /// Length and bytes.
    String(Text) = 8, "string", 8;
    /// 64-bit unsigned integer.
    U64(u64) = 10, "u64", 8;
    /// 64-bit signed integer.
    I64(i64) = 11, "i64", 8;
    /// 64-bit float.
    F64(f64) = 12, "f64", 8;
}

impl Value {
    /// The value as an integer, whatever its width and sign.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::I8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::I16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::I32(value) => Some(value.into()),
            Value::U64(value) => Some(value.into()),
            Value::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    /// The value as a 32-bit float; a 64-bit one is rounded.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(value) => Some(value),
            Value::F64(value) => Some(value as f32),
            _ => None,
        }
    }
}

impl Array {
    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.into())
    }
}

impl From<Vec<&str>> for Value {
    fn from(texts: Vec<&str>) -> Value {
        Value::Array(Array::String(texts.into_iter().map(Text::from).collect()))
    }
}

/// Type and value in one line, for messages and listings; long texts and arrays are shortened.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHARS_MAX: usize = 60;
        match self {
            Value::String(text) => {
                let text = String::from_utf8_lossy(&text.0);
                let short: String = text.chars().take(CHARS_MAX).collect();
                let dots = if short.len() < text.len() { "..." } else { "" };
                write!(f, "string {short:?}{dots}")
            }
            Value::Bool(value) => write!(f, "bool {value}"),
            Value::Array(array) => f.write_str(&array.type_name()),
            Value::F32(value) => write!(f, "f32 {value}"),
            Value::F64(value) => write!(f, "f64 {value}"),
            integer => write!(f, "{} {}", integer.type_name(), integer.as_integer().unwrap_or_default()),
        }
    }
}

/// One element of the file's encoding.
trait Element: Sized {
    fn take(key: &str, from: &mut Cursor<'_>) -> Result<Self, GgufError>;
    fn put(&self, to: &mut Vec<u8>);
}

macro_rules! number_elements {
    ($($rust:ty)*) => {$(
        impl Element for $rust {
            fn take(key: &str, from: &mut Cursor<'_>) -> Result<Self, GgufError> {
                Ok(<$rust>::from_le_bytes(from.array(|| format!("value of key \"{key}\""))?))
            }
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

number_elements! { u8 i8 u16 i16 u32 i32 f32 u64 i64 f64 }

impl Element for bool {
    fn take(key: &str, from: &mut Cursor<'_>) -> Result<Self, GgufError> {
        let at = from.offset();
        match u8::take(key, from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(GgufError::Malformed {
                offset: at,
                what: format!("key \"{key}\" has the flag {other}, expected 0 or 1"),
            }),
        }
    }

    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }
}

impl Element for Text {
    fn take(key: &str, from: &mut Cursor<'_>) -> Result<Self, GgufError> {
        let bytes = from.string(usize::MAX, || format!("string of key \"{key}\""))?;
        Ok(Text(bytes.to_vec()))
    }

    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&(self.0.len() as u64).to_le_bytes());
        to.extend_from_slice(&self.0);
    }
}
