//! Variants of an op's own cases: its operands in every memory layout and every type that it accepts, and with
//! nothing along an axis.

use ssmgraph::ops::AXES;
use ssmgraph::ops::case::{Arrangement, Values, fill};
use ssmgraph::ops::{Case, DType, HostTensor, Layout, Op, OpKind, Storage, Tolerance};

/// Most elements of all operands of a case that is varied.
const ELEMENTS_MAX: usize = 6000;

/// Cases of an op to vary: for each set of attributes (the name counts as one) the one with the most axes and the
/// one with the fewest, of ordinary numbers.
pub fn bases(kind: OpKind) -> Vec<Case> {
    let mut groups: Vec<(String, Vec<Case>)> = Vec::new();
    for case in kind.cases().into_iter().filter(is_ordinary) {
        let attributes = format!("{} {}", case.op.name(), attributes_without_sizes(&case.op));
        match groups.iter_mut().find(|(of, _)| *of == attributes) {
            Some((_, cases)) => cases.push(case),
            None => groups.push((attributes, vec![case])),
        }
    }
    let ends = groups.into_iter().flat_map(|(_, mut cases)| {
        cases.sort_by_key(axes);
        let first = cases.swap_remove(0);
        // Sorting is stable and `swap_remove` put the last one first.
        let last = (!cases.is_empty()).then(|| cases.swap_remove(0));
        [Some(first), last]
    });
    ends.flatten().collect()
}

/// Copies and repeats carry a shape, windows a layout: these do not set cases apart.
fn attributes_without_sizes(op: &Op) -> String {
    match op.kind() {
        OpKind::Cpy | OpKind::Repeat | OpKind::Reshape | OpKind::Window => String::new(),
        _ => op.attributes(),
    }
}

fn axes(case: &Case) -> usize {
    case.inputs.iter().map(|input| input.ne().iter().filter(|&&count| count > 1).count()).sum()
}

fn is_ordinary(case: &Case) -> bool {
    let elements: usize = case.inputs.iter().map(|input| input.layout().elements()).sum();
    elements <= ELEMENTS_MAX
        && case.inputs.iter().all(|input| {
            let readable = input.layout().dtype.is_readable();
            !input.layout().is_empty()
                && (!readable || input.to_f64().iter().all(|value| value.abs() <= 200.0))
        })
}

/// A tensor with the same values in another layout.
pub fn arranged(x: &HostTensor, arrangement: Arrangement) -> HostTensor {
    let mut tensor = HostTensor::filled(arrangement.layout(x.layout().dtype, &x.ne()), 0xff);
    tensor.view_mut().expect("arrangements do not overlap").copy_from(&x.view());
    tensor
}

/// A tensor with the same values in another type, as near as it has them; new ones in a block format.
fn converted(x: &HostTensor, dtype: DType) -> Option<HostTensor> {
    if dtype == DType::Q8_0 {
        let whole = x.ne()[0].is_multiple_of(dtype.block_len());
        return whole.then(|| Values::new(3).tensor(dtype, &x.ne(), -1.0, 1.0));
    }
    let layout = Layout::contiguous(dtype, &x.ne()).ok()?;
    let readable = x.layout().dtype.is_readable() && (dtype.is_float() || dtype.is_int());
    readable.then(|| fill(layout, |index| x.get(index)))
}

/// The case with each operand in turn, and all of its type together, in every type that the op accepts.
fn typed(case: &Case, peers: &[Case]) -> Vec<Case> {
    let mut cases = vec![case.clone()];
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64, DType::Q8_0] {
        for (operand, of) in case.inputs.iter().enumerate() {
            let old = of.layout().dtype;
            let change = |also: &dyn Fn(usize) -> bool| {
                let inputs: Option<Vec<HostTensor>> = case
                    .inputs
                    .iter()
                    .enumerate()
                    .map(|(index, x)| if also(index) { converted(x, dtype) } else { Some(x.clone()) })
                    .collect();
                Some(retyped(case, inputs?, peers, dtype))
            };
            if old != dtype {
                cases.extend(change(&|index| index == operand));
                cases.extend(change(&|index| case.inputs[index].layout().dtype == old));
            }
        }
    }
    let mut seen: Vec<Vec<DType>> = Vec::new();
    cases.retain(|case| {
        let types = types(case);
        let new = !seen.contains(&types) && accepted(case);
        seen.push(types);
        new
    });
    cases
}

fn types(case: &Case) -> Vec<DType> {
    case.inputs.iter().map(|input| input.layout().dtype).collect()
}

/// Whether the op takes operands of these layouts.
pub fn accepted(case: &Case) -> bool {
    let layouts: Vec<Layout> = case.inputs.iter().map(|input| *input.layout()).collect();
    case.op.infer(&layouts).is_ok()
}

/// As close as the op's own cases of the same types must be, if it has some; else as its case of other types, and
/// a rounding to the type.
fn retyped(case: &Case, inputs: Vec<HostTensor>, peers: &[Case], dtype: DType) -> Case {
    let mut new = Case { name: format!("{}_{dtype}", case.name), inputs, ..case.clone() };
    let same = peers.iter().filter(|peer| peer.op.name() == case.op.name() && types(peer) == types(&new));
    let tolerances: Vec<Tolerance> = same.map(|peer| peer.tolerance).collect();
    new.tolerance = match (tolerances.is_empty(), case.tolerance == Tolerance::EXACT) {
        (false, _) => tolerances.into_iter().fold(case.tolerance, wider),
        (true, true) => Tolerance::EXACT,
        (true, false) => wider(case.tolerance, Tolerance::rounded_to(dtype)),
    };
    new
}

fn wider(a: Tolerance, b: Tolerance) -> Tolerance {
    Tolerance { rtol: a.rtol.max(b.rtol), atol: a.atol.max(b.atol) }
}

/// The case in every type, and in each type with each operand in turn, and all operands, in every layout that the
/// op accepts.
pub fn grid(case: &Case, peers: &[Case]) -> Vec<Case> {
    let mut cases = Vec::new();
    for typed in typed(case, peers) {
        for &arrangement in Arrangement::ALL {
            let count = typed.inputs.len();
            let choices =
                (0..count).map(|operand| vec![operand]).chain((count > 1).then(|| (0..count).collect()));
            for operands in choices {
                let mut case = typed.clone();
                for &operand in &operands {
                    let input = &mut case.inputs[operand];
                    let packed_rows = Arrangement::PACKED_ROWS.contains(&arrangement);
                    if packed_rows || !input.layout().dtype.is_block() {
                        *input = arranged(input, arrangement);
                    }
                }
                case.name = format!("{} operands {operands:?} {}", typed.name, arrangement.name());
                cases.push(case);
            }
        }
    }
    cases.retain(accepted);
    cases
}

/// The case with nothing along each axis of each operand in turn, and along the axes of other operands that had as
/// many elements; and the op's own cases of empty operands.
pub fn emptied(kind: OpKind) -> Vec<Case> {
    let is_empty = |case: &Case| case.inputs.iter().any(|input| input.layout().is_empty());
    let mut cases: Vec<Case> = kind.cases().into_iter().filter(is_empty).collect();
    for base in bases(kind) {
        for operand in 0..base.inputs.len() {
            for axis in 0..AXES {
                let count = base.inputs[operand].ne()[axis];
                let all = without(&base, |_, of, _| of == count);
                let same_axis = without(&base, |_, of, at| of == count && at == axis);
                let alone = without(&base, |index, _, at| index == operand && at == axis);
                let found = [all, same_axis, alone].into_iter().flatten().find(accepted);
                cases.extend(
                    found.map(|case| Case { name: format!("{} {operand}.{axis} = 0", case.name), ..case }),
                );
            }
        }
    }
    cases
}

/// The case with packed operands, and nothing along the axes that are chosen by operand, count and axis. A copy
/// writes to a packed tensor of as many elements. `None` when a value, such as an id, would name what is no more.
fn without(case: &Case, chosen: impl Fn(usize, usize, usize) -> bool) -> Option<Case> {
    let mut new = case.clone();
    for (index, input) in new.inputs.iter_mut().enumerate() {
        let mut ne = input.layout().ne;
        for (axis, count) in ne.iter_mut().enumerate() {
            *count = if chosen(index, *count, axis) { 0 } else { *count };
        }
        let layout = Layout::contiguous(input.layout().dtype, &ne).ok()?;
        *input = match layout.is_empty() {
            true => HostTensor::zeros(layout),
            false => arranged(input, Arrangement::Contiguous),
        };
    }
    if let Op::Cpy(copy) = &mut new.op {
        copy.to = Layout::contiguous(copy.to.dtype, &new.inputs[0].ne()).ok()?;
    }
    let layouts: Vec<Layout> = new.inputs.iter().map(|input| *input.layout()).collect();
    let results = new.op.infer(&layouts).ok()?;
    let nothing = layouts.iter().chain(&results).any(Layout::is_empty);
    let is_view = matches!(new.op.storage(), Storage::View { .. });
    (nothing && (is_view || new.expected().is_ok())).then_some(new)
}
