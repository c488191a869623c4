//! Offsets in each device's arena: values whose lives do not meet may share bytes.

use super::{Home, Value};

/// Alignment of every value, in bytes: a cache line.
const ALIGN_BYTES: usize = 64;

/// Gives every arena value its offset and returns each device's arena size. Values are placed from the
/// largest to the smallest, each at the lowest offset where nothing alive at the same time lies; equal sizes
/// in order of birth, so that the result is the same on every machine.
///
/// Errors: the device whose arena would pass the address space.
pub fn lay_out(values: &mut [Value], devices: usize) -> Result<Vec<usize>, usize> {
    let mut order: Vec<usize> =
        (0..values.len()).filter(|&id| matches!(values[id].home, Home::Arena { .. })).collect();
    order.sort_by_key(|&id| (std::cmp::Reverse(values[id].bytes), values[id].live.start, id));
    let mut sizes = vec![0usize; devices];
    let mut placed: Vec<usize> = Vec::new();
    for id in order {
        let device = values[id].device;
        let too_large = |_| device;
        let bytes = round_up(values[id].bytes).ok_or(device)?;
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .map(|&other| &values[other])
            .filter(|other| other.device == device && meet(other, &values[id]))
            .map(|other| match other.home {
                Home::Arena { offset_bytes } => (offset_bytes, other.bytes),
                _ => unreachable!("only arena values are placed"),
            })
            .collect();
        taken.sort_unstable();
        let mut offset = 0usize;
        for (start, length) in taken {
            if bytes != 0 && offset.checked_add(bytes).ok_or(()).map_err(too_large)? <= start {
                break;
            }
            offset = offset.max(start + round_up(length).ok_or(device)?);
        }
        sizes[device] = sizes[device].max(offset.checked_add(bytes).ok_or(device)?);
        values[id].home = Home::Arena { offset_bytes: offset };
        placed.push(id);
    }
    Ok(sizes)
}

fn round_up(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALIGN_BYTES)
}

fn meet(a: &Value, b: &Value) -> bool {
    a.live.start <= b.live.end && b.live.start <= a.live.end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: usize, start: usize, end: usize) -> Value {
        Value { device: 0, home: Home::Arena { offset_bytes: 0 }, bytes, live: start..end, kept: false }
    }

    fn offset(value: &Value) -> usize {
        match value.home {
            Home::Arena { offset_bytes } => offset_bytes,
            _ => panic!("not in the arena"),
        }
    }

    #[test]
    fn values_that_never_meet_share_bytes() {
        let mut values = vec![value(100, 0, 1), value(100, 1, 2), value(100, 2, 3)];
        assert_eq!(lay_out(&mut values, 1), Ok(vec![256]));
        assert_eq!(offset(&values[0]), offset(&values[2]));
    }

    #[test]
    fn no_two_live_values_overlap() {
        let mut values: Vec<Value> =
            (0..60).map(|i| value(i * 37 % 500, i * 13 % 40, i * 13 % 40 + i % 9)).collect();
        lay_out(&mut values, 1).unwrap();
        for (i, a) in values.iter().enumerate() {
            for b in &values[..i] {
                let apart = offset(a) + a.bytes <= offset(b) || offset(b) + b.bytes <= offset(a);
                assert!(!meet(a, b) || apart || a.bytes == 0 || b.bytes == 0, "{a:?} {b:?}");
            }
        }
    }
}
