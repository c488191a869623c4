//! No panic crosses into C.

use crate::host::{Level, log};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The answer of `body`; if it panics, a line in the log and `fallback`.
pub fn guarded<T>(entry: &str, fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        // The log is ours too, but must not take the host down.
        let line = format!("{entry} panicked: {}", words(&*panic));
        let _ = catch_unwind(|| log(Level::Error, &line));
        fallback
    })
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without words")
}

#[cfg(test)]
mod tests {
    use super::guarded;

    #[test]
    fn a_panic_becomes_the_fallback() {
        let index = std::hint::black_box(7);
        assert_eq!(guarded("a test's entry", -1, || [1, 2, 3][index]), -1);
        assert_eq!(guarded("a test's entry", -1, || std::panic::panic_any(())), -1);
        assert_eq!(guarded("a test's entry", -1, || 3), 3);
    }
}
