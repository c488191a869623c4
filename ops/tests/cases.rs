//! Every conformance case of every op is well formed: the reference accepts it and its name is unique.

use ssmgraph_ops::OpKind;
use std::collections::HashSet;

#[test]
fn every_case_evaluates_and_has_its_own_name() {
    for &kind in OpKind::ALL {
        let cases = kind.cases();
        let mut names = HashSet::new();
        assert!(!cases.is_empty(), "{} has no cases", kind.module());
        for case in cases {
            let at = format!("{} {}", kind.module(), case.name);
            assert_eq!(case.op.kind(), kind, "{at}");
            assert!(names.insert(case.name.clone()), "{at}: the name is there twice");
            let results = case.expected().unwrap_or_else(|error| panic!("{at}: {error}"));
            for (index, result) in results.iter().enumerate() {
                assert_eq!(
                    case.tolerance.mismatch(result, result),
                    None,
                    "{at}: {}",
                    case.op.result_name(index)
                );
            }
        }
    }
}
