//! What the device says: lines on stderr, and the last one kept for tests.

use super::settings::settings;
use std::sync::{Mutex, PoisonError};

static LAST: Mutex<String> = Mutex::new(String::new());

/// Reports something that the program did wrong.
pub fn problem(message: &str) {
    note(message);
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = message.to_owned();
}

/// Says something on stderr.
pub fn note(message: &str) {
    eprintln!("ssmgraph-emulator: {message}");
}

/// Says something if the log is on.
pub fn trace(message: impl FnOnce() -> String) {
    if settings().log {
        note(&message());
    }
}

/// The last problem reported; empty before the first.
pub fn last() -> String {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Forgets the last problem.
pub fn clear() {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
