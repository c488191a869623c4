//! A spinner for what takes longer than a second, on a terminal only.

use indicatif::ProgressBar;
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Shows a message from one second after its start until it is dropped.
pub struct Progress {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts the clock.
    pub fn start(message: String) -> Progress {
        if !stderr().is_terminal() {
            return Progress { done: None, thread: None };
        }
        let (done, finished) = channel::<()>();
        let thread = std::thread::spawn(move || {
            if finished.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                let bar = ProgressBar::new_spinner().with_message(message);
                bar.enable_steady_tick(Duration::from_millis(100));
                // Nothing is ever sent: the other end going away is the signal.
                finished.recv().unwrap_or_default();
                bar.finish_and_clear();
            }
        });
        Progress { done: Some(done), thread: Some(thread) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            // The thread only draws; a panic in it is no reason for another here.
            thread.join().unwrap_or_default();
        }
    }
}
