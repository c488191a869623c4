//! Streams and events: queues of work, and when it runs.
//!
//! In lazy mode nothing runs before something waits for it, and then only what must: so a program that forgets
//! to wait for an event reads what was there before, every time.

use super::capture::Place;
use super::counts::count;
use super::memory;
use super::report::problem;
use super::settings::settings;
use super::state::{Driver, Handle, new_handles};
use super::status::{Outcome, Status};
use super::work::{Copy, Direction, Work};
use std::time::Instant;

/// The default stream under its three handles.
pub const DEFAULT_STREAMS: [Handle; 3] = [0, 1, 2];

/// Names a record of an event, or a graph's launch.
pub type Ticket = u64;

/// A stream.
#[derive(Default)]
pub struct Stream {
    /// The queue it feeds: its own handle, or 0 for the one that all blocking streams share.
    pub queue: Handle,
    /// The capture it takes part in, and the nodes its next work follows.
    pub capturing: Option<Place>,
}

/// An event.
#[derive(Default)]
pub struct Event {
    /// Its last record outside captures.
    pub recorded: Option<Ticket>,
    /// When that happened.
    pub happened: Option<Instant>,
    /// Its last record if that was inside a capture.
    pub captured: Option<Place>,
    timing: bool,
}

impl Driver {
    pub(super) fn stream(&self, stream: Handle) -> Outcome<&Stream> {
        self.streams.get(&stream).ok_or(Status::INVALID_HANDLE)
    }

    pub(super) fn event(&self, event: Handle) -> Outcome<&Event> {
        self.events.get(&event).ok_or(Status::INVALID_HANDLE)
    }

    /// A new stream; a blocking one is ordered with the default stream.
    pub fn create_stream(&mut self, blocking: bool) -> Handle {
        let stream = new_handles(1);
        let queue = if blocking { 0 } else { stream };
        self.streams.insert(stream, Stream { queue, capturing: None });
        stream
    }

    /// Ends a stream after its work.
    pub fn destroy_stream(&mut self, stream: Handle) -> Outcome {
        if DEFAULT_STREAMS.contains(&stream) {
            return Err(Status::INVALID_HANDLE);
        }
        self.stream(stream)?;
        self.spoil_capture_of(stream);
        let queue = self.stream(stream)?.queue;
        self.streams.remove(&stream);
        if queue == stream {
            let drained = self.drain(queue);
            self.queues.remove(&queue);
            return drained;
        }
        Ok(())
    }

    /// Puts work at the end of a stream, or into the graph that the stream records.
    pub fn submit(&mut self, stream: Handle, work: Work) -> Outcome {
        if self.stream(stream)?.capturing.is_some() {
            return self.record_node(stream, work);
        }
        let queue = self.stream(stream)?.queue;
        if queue == 0 {
            self.forbid_implicit_order()?;
        }
        count_work(&work);
        self.enqueue(queue, work)
    }

    fn enqueue(&mut self, queue: Handle, work: Work) -> Outcome {
        self.queues.entry(queue).or_default().push_back(work);
        if settings().lazy { Ok(()) } else { self.drain(queue) }
    }

    /// Runs all of a queue.
    pub(super) fn drain(&mut self, queue: Handle) -> Outcome {
        while self.step(queue) {}
        self.sticky.map_or(Ok(()), Err)
    }

    /// Runs everything.
    pub fn drain_all(&mut self) -> Outcome {
        let mut queues: Vec<Handle> = self.queues.keys().copied().collect();
        queues.sort_unstable();
        while !queues.is_empty() {
            let next = self.random_below(queues.len());
            let queue = queues.remove(next);
            self.drain(queue)?;
        }
        self.sticky.map_or(Ok(()), Err)
    }

    /// Runs a queue up to a record, if that has not run.
    pub(super) fn run_until(&mut self, ticket: Ticket) {
        while let Some(&queue) = self.pending.get(&ticket) {
            if !self.step(queue) {
                self.pending.remove(&ticket);
            }
        }
    }

    /// Runs the first piece of work of a queue; false when there is none.
    fn step(&mut self, queue: Handle) -> bool {
        let work = self.queues.get_mut(&queue).and_then(|work| work.pop_front());
        let found = work.is_some();
        if let Some(work) = work {
            self.perform(work);
        }
        found
    }

    /// A ticket for a record about to enter a queue.
    pub(super) fn new_ticket(&mut self, queue: Handle) -> Ticket {
        let ticket = new_handles(1) as Ticket;
        self.pending.insert(ticket, queue);
        ticket
    }

    /// Waits for a stream.
    pub fn synchronize_stream(&mut self, stream: Handle) -> Outcome {
        self.refuse_while_capturing(stream)?;
        count(|counts| counts.synchronisations += 1);
        let queue = self.stream(stream)?.queue;
        self.drain(queue)
    }

    /// Whether a stream's work is done; each question brings it one step closer.
    pub fn query_stream(&mut self, stream: Handle) -> Outcome {
        self.refuse_while_capturing(stream)?;
        let queue = self.stream(stream)?.queue;
        if self.step(queue) { Err(Status::NOT_READY) } else { Ok(()) }
    }

    /// Waits for everything.
    pub fn synchronize(&mut self) -> Outcome {
        self.forbid_in_capture("cuCtxSynchronize")?;
        count(|counts| counts.synchronisations += 1);
        self.drain_all()
    }

    /// A new event.
    pub fn create_event(&mut self, timing: bool) -> Handle {
        let event = new_handles(1);
        self.events.insert(event, Event { timing, ..Event::default() });
        event
    }

    /// Ends an event.
    pub fn destroy_event(&mut self, event: Handle) -> Outcome {
        self.events.remove(&event).map(|_| ()).ok_or(Status::INVALID_HANDLE)
    }

    /// Records an event behind a stream's work.
    pub fn record_event(&mut self, event: Handle, stream: Handle) -> Outcome {
        self.event(event)?;
        let (place, queue) = (self.stream(stream)?.capturing.clone(), self.stream(stream)?.queue);
        if let Some(place) = place {
            self.check_capture(place.capture)?;
            self.update_event(event, None, Some(place));
            return Ok(());
        }
        let ticket = self.new_ticket(queue);
        self.update_event(event, Some(ticket), None);
        self.submit(stream, Work::Record(ticket, event))
    }

    fn update_event(&mut self, event: Handle, recorded: Option<Ticket>, captured: Option<Place>) {
        if let Some(event) = self.events.get_mut(&event) {
            *event = Event { recorded, captured, happened: None, timing: event.timing };
        }
    }

    /// Makes a stream's next work wait for an event; in a capture, joins what the event was recorded in.
    pub fn wait_event(&mut self, stream: Handle, event: Handle) -> Outcome {
        let (recorded, captured) = (self.event(event)?.recorded, self.event(event)?.captured.clone());
        if let Some(place) = captured {
            return self.join_capture(stream, place);
        }
        if self.stream(stream)?.capturing.is_some() {
            self.spoil_capture_of(stream);
            problem("a capturing stream cannot wait for an event that was recorded outside the capture");
            return Err(Status::CAPTURE_ISOLATION);
        }
        match recorded.filter(|ticket| self.pending.contains_key(ticket)) {
            Some(ticket) => self.submit(stream, Work::Wait(ticket)),
            None => Ok(()),
        }
    }

    /// Whether an event has happened; each question brings it one step closer.
    pub fn query_event(&mut self, event: Handle) -> Outcome {
        let ticket = self.usable_event(event)?;
        match ticket.and_then(|ticket| self.pending.get(&ticket).copied()) {
            Some(queue) => {
                self.step(queue);
                Err(Status::NOT_READY)
            }
            None => Ok(()),
        }
    }

    /// Waits for an event.
    pub fn synchronize_event(&mut self, event: Handle) -> Outcome {
        let ticket = self.usable_event(event)?;
        count(|counts| counts.synchronisations += 1);
        if let Some(ticket) = ticket {
            self.run_until(ticket);
        }
        Ok(())
    }

    /// The record of an event that the host may ask about; one recorded in a capture spoils that.
    fn usable_event(&mut self, event: Handle) -> Outcome<Option<Ticket>> {
        let event = self.event(event)?;
        match event.captured.as_ref().map(|place| place.capture) {
            Some(capture) => {
                self.spoil(capture);
                Err(Status::CAPTURED_EVENT)
            }
            None => Ok(event.recorded),
        }
    }

    /// Milliseconds between two events.
    pub fn elapsed_ms(&self, from: Handle, to: Handle) -> Outcome<f32> {
        let (from, to) = (self.event(from)?, self.event(to)?);
        if !from.timing || !to.timing {
            return Err(Status::INVALID_HANDLE);
        }
        match (from.happened, to.happened) {
            (Some(from), Some(to)) => Ok(to.saturating_duration_since(from).as_secs_f32() * 1e3),
            _ => Err(Status::NOT_READY),
        }
    }

    /// Copies from host to device. Pageable memory is read before this returns, pinned memory when the copy
    /// runs.
    pub fn copy_to_device(&mut self, to: usize, from: usize, bytes: usize, stream: Handle) -> Outcome {
        if bytes == 0 {
            return self.stream(stream).map(|_| ());
        }
        if from == 0 {
            return Err(Status::INVALID_VALUE);
        }
        if memory::is_pinned(from, bytes) {
            let direction = Direction::HostToDevice;
            return self.submit(stream, Work::Copy(Copy { to, from, bytes, direction, pinned: true }));
        }
        self.forbid_pageable(stream)?;
        // SAFETY: the C caller of a copy answers for the source being readable during the call.
        let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.into();
        self.submit(stream, Work::Write { to, bytes })
    }

    /// Copies from device to host. Into pageable memory, it is done when this returns.
    pub fn copy_to_host(&mut self, to: usize, from: usize, bytes: usize, stream: Handle) -> Outcome {
        if bytes == 0 {
            return self.stream(stream).map(|_| ());
        }
        if to == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let pinned = memory::is_pinned(to, bytes);
        if !pinned {
            self.forbid_pageable(stream)?;
        }
        let direction = Direction::DeviceToHost;
        self.submit(stream, Work::Copy(Copy { to, from, bytes, direction, pinned }))?;
        let queue = self.stream(stream)?.queue;
        if pinned { Ok(()) } else { self.drain(queue) }
    }
}

/// Counts work that enters a queue.
fn count_work(work: &Work) {
    count(|counts| match work {
        Work::Kernel(_) => counts.kernel_launches += 1,
        Work::Copy(copy) => {
            let (copies, bytes) = match copy.direction {
                Direction::HostToDevice => (&mut counts.h2d_copies, &mut counts.h2d_bytes),
                Direction::DeviceToHost => (&mut counts.d2h_copies, &mut counts.d2h_bytes),
                Direction::DeviceToDevice => (&mut counts.d2d_copies, &mut counts.d2d_bytes),
            };
            *copies += 1;
            *bytes += copy.bytes as u64;
        }
        Work::Write { bytes, .. } => {
            counts.h2d_copies += 1;
            counts.h2d_bytes += bytes.len() as u64;
        }
        Work::Fill(_) => counts.memsets += 1,
        Work::Free(_) => counts.frees += 1,
        _ => {}
    });
}
