//! The conformance cases themselves: each can be evaluated, and a failure can be named.

use ssmgraph_ops::OpKind;
use std::collections::HashSet;

#[test]
fn every_case_evaluates() {
    for &kind in OpKind::ALL {
        for case in kind.cases() {
            let at = format!("{} / {}", kind.module(), case.name);
            let results = case.expected().unwrap_or_else(|error| panic!("{at}: {error}"));
            for result in &results {
                assert_eq!(case.tolerance.mismatch(result, result), None, "{at}");
            }
        }
    }
}

#[test]
fn case_names_are_unique_within_an_op() {
    for &kind in OpKind::ALL {
        let mut names = HashSet::new();
        for case in kind.cases() {
            assert!(names.insert(case.name.clone()), "{} has two cases {}", kind.module(), case.name);
        }
    }
}

#[test]
fn every_case_is_an_op_of_its_file() {
    for &kind in OpKind::ALL {
        assert!(kind.cases().iter().all(|case| case.op.kind() == kind), "{}", kind.module());
        assert!(!kind.cases().is_empty(), "{} has no cases", kind.module());
    }
}
