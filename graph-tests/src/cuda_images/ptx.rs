//! What PTX says about its kernels.

/// The name of every kernel of a PTX text, in order.
pub fn entries(ptx: &str) -> Vec<&str> {
    ptx.split(".entry ").skip(1).filter_map(|text| text.split('(').next()).map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_listed_by_name() {
        let ptx = "\t// .globl\tunary\n.visible .entry unary(\n\t.param .align 8 .b8 unary_param_0[184]\n)\n\
                   .maxntid 256, 1, 1\n{\n\tret;\n}\n.visible .entry none()\n{\n}\n";
        assert_eq!(entries(ptx), ["unary", "none"]);
    }
}
