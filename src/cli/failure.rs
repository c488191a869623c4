//! How a command ends when it does not succeed.

use ssmgraph::EngineError;
use std::error::Error;
use std::io;

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// The call makes no sense: exit code 2.
    Call(String),
    /// Something was found wrong: exit code 1.
    Wrong(String),
    /// Something was found wrong and has been shown already: exit code 1.
    Found,
    /// Whoever read the output has gone away.
    ReaderLeft,
}

impl Failure {
    /// A wrong call, with the causes of the error.
    pub fn call(error: impl Error) -> Failure {
        Failure::Call(chain(&error))
    }

    /// Something wrong, with the causes of the error.
    pub fn wrong(error: impl Error) -> Failure {
        Failure::Wrong(chain(&error))
    }

    /// The message, if there is something left to say.
    pub fn message(&self) -> Option<&str> {
        match self {
            Failure::Call(message) | Failure::Wrong(message) => Some(message),
            Failure::Found | Failure::ReaderLeft => None,
        }
    }

    /// The exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Call(_) => 2,
            Failure::Wrong(_) | Failure::Found => 1,
            Failure::ReaderLeft => 0,
        }
    }
}

/// An error and its causes on one line; a cause that the error quotes itself is not said twice.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.replace('\n', " ")
}

/// An error while writing results; everything else is turned into a failure where it happens.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderLeft,
            _ => Failure::Wrong(format!("standard output: {error}")),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        match error {
            EngineError::Token { .. } | EngineError::EmptyPrompt { .. } | EngineError::Option { .. } => {
                Failure::call(error)
            }
            other => Failure::wrong(other),
        }
    }
}
