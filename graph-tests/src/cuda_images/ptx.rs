//! What PTX says about its kernels.

/// A kernel in PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Size of each parameter, in bytes.
    pub params_bytes: Vec<usize>,
}

/// Every kernel of a PTX text, in order.
pub fn entries(ptx: &str) -> Vec<Entry> {
    ptx.split(".entry ").skip(1).map(entry).collect()
}

/// The kernel whose declaration starts the text: `name(` parameters `)`.
fn entry(text: &str) -> Entry {
    let (name, rest) = text.split_once('(').unwrap_or((text, ""));
    let params = rest.split(')').next().unwrap_or("");
    Entry {
        name: name.trim().to_owned(),
        params_bytes: params.split(".param").skip(1).map(param_bytes).collect(),
    }
}

/// Size of a parameter such as ` .align 8 .b8 name[184]` or ` .u64 name`.
fn param_bytes(text: &str) -> usize {
    let count = text.split_once('[').and_then(|(_, rest)| rest.split(']').next()?.trim().parse().ok());
    let mut bits = text.split_whitespace().filter_map(|word| {
        word.strip_prefix(['.'])?.strip_prefix(['b', 'u', 's', 'f'])?.parse::<usize>().ok()
    });
    count.unwrap_or(1) * bits.next_back().unwrap_or(0) / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_listed_with_their_parameters() {
        let ptx = "\t// .globl\tunary\n.visible .entry unary(\n\t.param .align 8 .b8 unary_param_0[184]\n)\n\
                   .maxntid 256, 1, 1\n{\n\tret;\n}\n.visible .entry two(\n\t.param .u64 two_param_0,\n\t.param \
                   .f32 two_param_1\n)\n{\n}\n.visible .entry none()\n{\n}\n";
        let expected = [("unary", vec![184]), ("two", vec![8, 4]), ("none", vec![])];
        let expected = expected.map(|(name, params_bytes)| Entry { name: name.to_owned(), params_bytes });
        assert_eq!(entries(ptx), expected);
    }
}
