//! What the driver reads in PTX: version, target, and each entry's parameters.

/// A `.entry`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Sizes of its parameters, in bytes.
    pub parameter_bytes: Vec<u32>,
    /// Most threads of a block (`.maxntid`).
    pub threads_max: u32,
}

/// The parts of a module that the driver needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ptx {
    /// The PTX version, as 10 · major + minor.
    pub version: u32,
    /// The compute capability it is for, as 10 · major + minor.
    pub target: u32,
    /// The kernels.
    pub entries: Vec<Entry>,
}

/// Reads PTX text.
pub fn parse(text: &str) -> Ptx {
    let mut ptx = Ptx::default();
    let mut lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    while let Some(line) = lines.next() {
        if let Some(version) = line.strip_prefix(".version") {
            ptx.version = version_number(version.trim());
        } else if let Some(target) = line.strip_prefix(".target") {
            ptx.target = leading_number(target.trim().trim_start_matches("sm_"));
        } else if let Some((_, declaration)) = line.split_once(".entry ") {
            ptx.entries.push(parse_entry(declaration, &mut lines));
        }
    }
    ptx
}

/// Reads on to the entry's body.
fn parse_entry<'a>(declaration: &'a str, lines: &mut impl Iterator<Item = &'a str>) -> Entry {
    let (name, rest) = declaration.split_once('(').unwrap_or((declaration, ""));
    let mut entry = Entry { name: name.trim().to_owned(), parameter_bytes: Vec::new(), threads_max: 1024 };
    for line in std::iter::once(rest).chain(lines) {
        let head = line.split('{').next().unwrap_or_default();
        entry.parameter_bytes.extend(head.split(".param").skip(1).map(parameter_bytes));
        if let Some((_, threads)) = head.split_once(".maxntid") {
            entry.threads_max = threads.split(',').map(|part| leading_number(part.trim())).product();
        }
        if line.contains('{') {
            break;
        }
    }
    entry
}

/// Bytes of a parameter: `.align 8 .b8 name[320]` or `.u64 name`.
fn parameter_bytes(declaration: &str) -> u32 {
    let mut words = declaration.split([' ', '\t', ',', ')']).filter(|word| !word.is_empty());
    let size = words.find_map(type_bytes).unwrap_or(8);
    let count = declaration.split_once('[').map_or(1, |(_, count)| leading_number(count));
    size * count
}

/// Bytes of a type such as `.b8`, `.f32`; `None` for any other word.
fn type_bytes(word: &str) -> Option<u32> {
    let bits = word.strip_prefix(['.'])?.strip_prefix(['b', 'u', 's', 'f'])?;
    bits.parse::<u32>().ok().map(|bits| bits / 8)
}

fn version_number(text: &str) -> u32 {
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    10 * leading_number(major) + leading_number(minor)
}

fn leading_number(text: &str) -> u32 {
    let digits = text.find(|digit: char| !digit.is_ascii_digit()).map_or(text, |end| &text[..end]);
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_with_their_parameters() {
        let text = "//\n.version 8.0\n.target sm_70\n.address_size 64\n\n.visible .entry unary(\n\
                    \t.param .align 8 .b8 unary_param_0[176]\n)\n.maxntid 256, 1, 1\n{\n.reg .b32 %r<3>;\nret;\n}\n\
                    .visible .entry plain(.param .u64 plain_param_0, .param .f32 plain_param_1) { ret; }\n\
                    .entry none()\n{\n}\n";
        let ptx = parse(text);
        assert_eq!((ptx.version, ptx.target), (80, 70));
        let entry = |name: &str, parameter_bytes: &[u32], threads_max| Entry {
            name: name.into(),
            parameter_bytes: parameter_bytes.to_vec(),
            threads_max,
        };
        let expected = [entry("unary", &[176], 256), entry("plain", &[8, 4], 1024), entry("none", &[], 1024)];
        assert_eq!(ptx.entries, expected);
    }

    #[test]
    fn text_that_is_no_ptx_has_no_entries() {
        assert_eq!(parse(""), Ptx::default());
        assert!(parse("garbage .entry").entries.is_empty());
    }
}
