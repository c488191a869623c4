//! Text from bytes that arrive a few at a time.

/// Turns pieces of UTF-8 into text and holds back a character until all its bytes are there.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// The beginning of a character: at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// A stream at the start of a text.
    pub fn new() -> Utf8Stream {
        Utf8Stream::default()
    }

    /// The text that is complete with these bytes. Bytes that cannot become UTF-8 give `U+FFFD`.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let incomplete = done + chunk.invalid().len() == self.pending.len()
                && std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
            if !chunk.invalid().is_empty() && !incomplete {
                text.push(char::REPLACEMENT_CHARACTER);
                done += chunk.invalid().len();
            }
        }
        self.pending.drain(..done);
        text
    }

    /// What is left at the end of the text: nothing, or `U+FFFD` for a character cut short.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_text() {
        let text = "aé\u{2014}🦀z".as_bytes();
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let mut stream = Utf8Stream::new();
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                let got: String = pieces.iter().map(|piece| stream.push(piece)).collect();
                assert_eq!(got.as_bytes(), text);
                assert_eq!(stream.finish(), "");
            }
        }
    }

    #[test]
    fn half_a_character_waits() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(&[b'x', 0xf0, 0x9f]), "x");
        assert_eq!(stream.push(&[0xa6]), "");
        assert_eq!(stream.push(&[0x80]), "🦀");
        assert_eq!(stream.push(&[0xe2, 0x80]), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn broken_bytes_are_replaced_at_once() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(&[0xff, b'a', 0x80]), "\u{fffd}a\u{fffd}");
        assert_eq!(stream.push(&[0xe2]), "");
        assert_eq!(stream.push(b"b"), "\u{fffd}b");
    }
}
