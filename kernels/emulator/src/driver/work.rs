//! Work that streams and graphs hold, and what running it does.

use super::counts::count;
use super::graph::Node;
use super::launch::Launch;
use super::memory;
use super::state::{Driver, Handle};
use super::status::Status;
use super::stream::Ticket;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

/// A function of the program that runs in a stream.
pub type HostFunction = extern "C" fn(*mut c_void);

/// Where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From pinned host memory to the device.
    HostToDevice,
    /// From the device to the host, pinned or not.
    DeviceToHost,
    /// Inside the device.
    DeviceToDevice,
}

/// A copy that reads its source when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where the bytes go.
    pub to: usize,
    /// Where they come from.
    pub from: usize,
    /// How many.
    pub bytes: usize,
    /// Which sides are the device's.
    pub direction: Direction,
    /// Whether the host's side is pinned memory, which must still be that when the copy runs.
    pub pinned: bool,
}

/// A fill with elements of 1, 2 or 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Where the first element goes.
    pub to: usize,
    /// The element, its low bytes used.
    pub value: u32,
    /// Bytes of an element.
    pub width: usize,
    /// How many elements.
    pub elements: usize,
}

/// One piece of work.
#[derive(Clone)]
pub enum Work {
    /// A grid.
    Kernel(Arc<Launch>),
    /// A copy.
    Copy(Copy),
    /// Bytes for the device, which were read when the copy was asked for.
    Write {
        /// Where they go.
        to: usize,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// A fill.
    Fill(Fill),
    /// A call of the program.
    Host(HostFunction, usize),
    /// An allocation given back.
    Free(usize),
    /// An event, or the end of a graph's launch (event 0).
    Record(Ticket, Handle),
    /// A wait for what was recorded elsewhere.
    Wait(Ticket),
    /// A graph as it was when it was launched.
    Graph(Arc<Vec<Node>>),
}

impl Driver {
    /// Runs one piece of work. After a failure only events still happen.
    pub(super) fn perform(&mut self, work: Work) {
        match work {
            Work::Record(ticket, event) => self.happen(ticket, event),
            _ if self.sticky.is_some() => {}
            Work::Kernel(launch) => self.run_kernel(&launch),
            Work::Copy(copy) => self.run_copy(&copy),
            Work::Write { to, bytes } => self.run_write(to, &bytes),
            Work::Fill(fill) => self.run_fill(&fill),
            Work::Host(function, data) => function(data as *mut c_void),
            Work::Free(address) => {
                if let Err(status) = memory::free(address) {
                    self.sticky = Some(status);
                }
            }
            Work::Wait(ticket) => self.run_until(ticket),
            Work::Graph(nodes) => self.run_graph(&nodes),
        }
    }

    fn happen(&mut self, ticket: Ticket, event: Handle) {
        self.pending.remove(&ticket);
        if let Some(event) = self.events.get_mut(&event).filter(|event| event.recorded == Some(ticket)) {
            event.happened = Some(Instant::now());
        }
    }

    fn run_kernel(&mut self, launch: &Launch) {
        count(|counts| counts.kernels_run += 1);
        if let Err(error) = launch.run() {
            self.die(Status(error.code), &error.message);
        }
    }

    fn run_copy(&mut self, copy: &Copy) {
        let checked = match copy.direction {
            Direction::HostToDevice => memory::check_device(copy.to, copy.bytes).map_err(|text| ("to", text)),
            Direction::DeviceToHost => {
                memory::check_device(copy.from, copy.bytes).map_err(|text| ("from", text))
            }
            Direction::DeviceToDevice => memory::check_device(copy.from, copy.bytes)
                .map_err(|text| ("from", text))
                .and_then(|()| memory::check_device(copy.to, copy.bytes).map_err(|text| ("to", text))),
        };
        if let Err((side, text)) = checked {
            return self.die(Status::ILLEGAL_ADDRESS, &format!("copy {side} {text}"));
        }
        let host = if copy.direction == Direction::DeviceToHost { copy.to } else { copy.from };
        if copy.pinned && !memory::is_pinned(host, copy.bytes) {
            let message = format!("copy with pinned memory at 0x{host:x}, which is pinned no more");
            return self.die(Status::ILLEGAL_ADDRESS, &message);
        }
        // SAFETY: the device's side lies inside a live allocation and pinned memory inside a live pinned one;
        // other host memory is the caller's, who waits inside the call until the copy is done.
        unsafe {
            match copy.direction {
                Direction::DeviceToHost => {
                    std::ptr::copy(copy.from as *const u8, copy.to as *mut u8, copy.bytes);
                }
                _ => memory::write(copy.to, copy.from, copy.bytes),
            }
        }
    }

    fn run_write(&mut self, to: usize, bytes: &[u8]) {
        if let Err(text) = memory::check_device(to, bytes.len()) {
            return self.die(Status::ILLEGAL_ADDRESS, &format!("copy to {text}"));
        }
        // SAFETY: the bytes at `to` lie inside a live allocation, and the driver's lock keeps others away.
        unsafe { memory::write(to, bytes.as_ptr() as usize, bytes.len()) };
    }

    fn run_fill(&mut self, fill: &Fill) {
        if let Err(text) = memory::check_device(fill.to, fill.elements * fill.width) {
            return self.die(Status::ILLEGAL_ADDRESS, &format!("memset of {text}"));
        }
        let element = fill.value.to_le_bytes();
        if element[..fill.width].iter().all(|&byte| byte == 0) {
            // SAFETY: as below.
            return unsafe { memory::zero(fill.to, fill.elements * fill.width) };
        }
        // SAFETY: these bytes lie inside a live allocation, and the driver's lock keeps others away.
        let bytes = unsafe { std::slice::from_raw_parts_mut(fill.to as *mut u8, fill.elements * fill.width) };
        for place in bytes.chunks_exact_mut(fill.width) {
            place.copy_from_slice(&element[..fill.width]);
        }
    }
}
