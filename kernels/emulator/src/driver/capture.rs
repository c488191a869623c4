//! Stream capture: work becomes nodes of a graph, under CUDA's rules about what may happen meanwhile.

use super::counts::count;
use super::faults::{self, Call};
use super::graph::{Graph, Node};
use super::report::problem;
use super::state::{Driver, Handle, new_handles};
use super::status::{Outcome, Status};
use super::stream::DEFAULT_STREAMS;
use super::work::Work;
use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::c_int;
use std::thread::ThreadId;

/// Where in a capture something stands: behind these nodes.
#[derive(Clone, Debug)]
pub struct Place {
    /// The capture.
    pub capture: Handle,
    /// What the next node follows.
    pub after: Vec<usize>,
}

/// Which calls of which threads a capture forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Unsafe calls of any thread.
    Global,
    /// Unsafe calls of the thread that captures.
    ThreadLocal,
    /// None.
    Relaxed,
}

impl Strictness {
    /// From a `CUstreamCaptureMode`.
    pub fn from_number(number: c_int) -> Outcome<Strictness> {
        match number {
            0 => Ok(Strictness::Global),
            1 => Ok(Strictness::ThreadLocal),
            2 => Ok(Strictness::Relaxed),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    fn number(self) -> c_int {
        self as c_int
    }
}

/// A capture under way.
pub struct Capture {
    origin: Handle,
    nodes: Vec<Node>,
    strictness: Strictness,
    thread: ThreadId,
    spoilt: bool,
}

thread_local! {
    /// What this thread lets captures forbid it.
    static THREAD_STRICTNESS: Cell<Strictness> = const { Cell::new(Strictness::Global) };
}

/// Sets what captures forbid this thread; gives what it was, as a `CUstreamCaptureMode`.
pub fn exchange_strictness(strictness: Strictness) -> c_int {
    THREAD_STRICTNESS.replace(strictness).number()
}

impl Driver {
    /// Begins to record a stream.
    pub fn begin_capture(&mut self, stream: Handle, strictness: Strictness) -> Outcome {
        if DEFAULT_STREAMS.contains(&stream) {
            problem("the default stream cannot be captured");
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        if self.stream(stream)?.capturing.is_some() {
            return Err(Status::ILLEGAL_STATE);
        }
        let capture = new_handles(1);
        let thread = std::thread::current().id();
        let begun = Capture { origin: stream, nodes: Vec::new(), strictness, thread, spoilt: false };
        self.captures.insert(capture, begun);
        self.place(stream, Some(Place { capture, after: Vec::new() }));
        count(|counts| counts.captures += 1);
        Ok(())
    }

    fn place(&mut self, stream: Handle, place: Option<Place>) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capturing = place;
        }
    }

    /// Ends the capture that began in a stream; gives its graph.
    pub fn end_capture(&mut self, stream: Handle) -> Outcome<Handle> {
        let place = self.stream(stream)?.capturing.clone().ok_or(Status::ILLEGAL_STATE)?;
        let Some(capture) = self.captures.get(&place.capture) else { return Err(Status::UNKNOWN) };
        if capture.origin != stream {
            self.spoil(place.capture);
            return Err(Status::CAPTURE_UNMATCHED);
        }
        if capture.strictness != Strictness::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Status::CAPTURE_WRONG_THREAD);
        }
        let joined = self.is_joined(&place, &capture.nodes);
        let members = self.streams.values_mut().filter(|stream| stream.takes_part_in(place.capture));
        members.for_each(|stream| stream.capturing = None);
        let Some(capture) = self.captures.remove(&place.capture) else { return Err(Status::UNKNOWN) };
        // Only now: a capture that fails to end has ended all the same.
        faults::check_kind(Call::Capture)?;
        if capture.spoilt {
            return Err(Status::CAPTURE_INVALIDATED);
        }
        if !joined {
            problem("a stream's captured work was not joined before the capture ended");
            return Err(Status::CAPTURE_UNJOINED);
        }
        let handle = new_handles(capture.nodes.len() + 1);
        self.graphs.insert(handle, Graph { nodes: capture.nodes });
        Ok(handle)
    }

    /// Whether what the origin ends with comes after all that other streams recorded.
    fn is_joined(&self, origin: &Place, nodes: &[Node]) -> bool {
        let mut seen = HashSet::new();
        let mut to_visit = origin.after.clone();
        while let Some(node) = to_visit.pop() {
            if seen.insert(node) {
                to_visit.extend(&nodes[node].after);
            }
        }
        let places = self.streams.values().filter_map(|stream| stream.capturing.as_ref());
        places
            .filter(|place| place.capture == origin.capture)
            .all(|place| place.after.iter().all(|node| seen.contains(node)))
    }

    /// A `CUstreamCaptureStatus`, and the capture's number.
    pub fn capture_status(&self, stream: Handle) -> Outcome<(c_int, Option<Handle>)> {
        let capture = self.stream(stream)?.capturing.as_ref().map(|place| place.capture);
        let spoilt = capture.and_then(|capture| self.captures.get(&capture)).is_some_and(|c| c.spoilt);
        Ok((c_int::from(capture.is_some()) + c_int::from(spoilt), capture))
    }

    /// Records work as a node behind what the stream holds.
    pub(super) fn record_node(&mut self, stream: Handle, work: Work) -> Outcome {
        let Some(place) = self.stream(stream)?.capturing.clone() else { return Err(Status::ILLEGAL_STATE) };
        self.check_capture(place.capture)?;
        if matches!(work, Work::Free(_)) {
            self.spoil(place.capture);
            problem("memory is freed in a capturing stream; the emulator has no memory nodes");
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        let Some(capture) = self.captures.get_mut(&place.capture) else { return Err(Status::UNKNOWN) };
        capture.nodes.push(Node { work, after: place.after });
        let last = capture.nodes.len() - 1;
        self.place(stream, Some(Place { capture: place.capture, after: vec![last] }));
        count(|counts| counts.captured_nodes += 1);
        Ok(())
    }

    /// Makes a stream's next work follow a place in a capture, which it may thereby enter.
    pub(super) fn join_capture(&mut self, stream: Handle, place: Place) -> Outcome {
        if !self.captures.contains_key(&place.capture) {
            // Recorded in a capture that has ended.
            return match self.stream(stream)?.capturing.is_some() {
                true => {
                    self.spoil_capture_of(stream);
                    Err(Status::CAPTURE_ISOLATION)
                }
                false => Err(Status::CAPTURED_EVENT),
            };
        }
        self.check_capture(place.capture)?;
        let mut after = match &self.stream(stream)?.capturing {
            Some(own) if own.capture != place.capture => {
                self.spoil(place.capture);
                return Err(Status::CAPTURE_MERGE);
            }
            Some(own) => own.after.clone(),
            None => Vec::new(),
        };
        for node in place.after {
            if !after.contains(&node) {
                after.push(node);
            }
        }
        self.place(stream, Some(Place { capture: place.capture, after }));
        Ok(())
    }

    /// Refuses when a capture is spoilt.
    pub(super) fn check_capture(&self, capture: Handle) -> Outcome {
        match self.captures.get(&capture) {
            Some(capture) if capture.spoilt => Err(Status::CAPTURE_INVALIDATED),
            _ => Ok(()),
        }
    }

    /// Makes a capture end in an error.
    pub(super) fn spoil(&mut self, capture: Handle) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.spoilt = true;
        }
    }

    /// Makes the capture that a stream takes part in end in an error.
    pub(super) fn spoil_capture_of(&mut self, stream: Handle) {
        let place = self.streams.get(&stream).and_then(|stream| stream.capturing.as_ref());
        if let Some(capture) = place.map(|place| place.capture) {
            self.spoil(capture);
        }
    }

    /// Refuses a call about a stream that captures, and spoils the capture.
    pub(super) fn refuse_while_capturing(&mut self, stream: Handle) -> Outcome {
        if self.stream(stream)?.capturing.is_none() {
            return Ok(());
        }
        self.spoil_capture_of(stream);
        problem("a capturing stream was waited for or asked whether it is done");
        Err(Status::CAPTURE_UNSUPPORTED)
    }

    /// Refuses to allocate in a capturing stream: that would be a memory node, which is not emulated.
    pub fn refuse_allocation_while_capturing(&mut self, stream: Handle) -> Outcome {
        if self.stream(stream)?.capturing.is_none() {
            return Ok(());
        }
        self.spoil_capture_of(stream);
        problem("memory is allocated in a capturing stream; the emulator has no memory nodes");
        Err(Status::CAPTURE_UNSUPPORTED)
    }

    /// Refuses a copy with pageable memory in a capturing stream: the graph would read the host's memory at
    /// each launch.
    pub(super) fn forbid_pageable(&mut self, stream: Handle) -> Outcome {
        if self.stream(stream)?.capturing.is_none() {
            return Ok(());
        }
        self.spoil_capture_of(stream);
        problem("capture of a copy from or to pageable host memory");
        Err(Status::CAPTURE_UNSUPPORTED)
    }

    /// Refuses a call that captures forbid, and spoils each capture that forbids it.
    pub fn forbid_in_capture(&mut self, call: &str) -> Outcome {
        if THREAD_STRICTNESS.get() == Strictness::Relaxed {
            return Ok(());
        }
        let thread = std::thread::current().id();
        let mut hit = false;
        for capture in self.captures.values_mut() {
            let forbids = match capture.strictness {
                Strictness::Global => true,
                Strictness::ThreadLocal => capture.thread == thread,
                Strictness::Relaxed => false,
            };
            capture.spoilt |= forbids;
            hit |= forbids;
        }
        if !hit {
            return Ok(());
        }
        problem(&format!("{call} is not permitted while a stream is capturing"));
        Err(Status::CAPTURE_UNSUPPORTED)
    }

    /// Refuses work in the default stream, which would wait for a blocking stream that captures.
    pub(super) fn forbid_implicit_order(&mut self) -> Outcome {
        let streams = &self.streams;
        let blocking = |capture: &&mut Capture| {
            !capture.spoilt && streams.get(&capture.origin).is_some_and(|stream| stream.queue == 0)
        };
        match self.captures.values_mut().find(blocking) {
            Some(capture) => {
                capture.spoilt = true;
                problem("the default stream was used while a blocking stream is capturing");
                Err(Status::CAPTURE_IMPLICIT)
            }
            None => Ok(()),
        }
    }
}

impl super::stream::Stream {
    fn takes_part_in(&self, capture: Handle) -> bool {
        self.capturing.as_ref().is_some_and(|place| place.capture == capture)
    }
}
