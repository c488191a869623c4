//! Laws of the matrix product: an output depends on its own row and column alone, to the bit.

use ssmgraph_kernels::{Forms, Memory, Place, Program, Step};
use ssmgraph_ops::case::Values;
use ssmgraph_ops::{DType, HostTensor, Layout, MulMat, Op};
use std::sync::Arc;

fn place(tensor: &HostTensor) -> Place {
    let memory = Memory::zeroed(tensor.bytes().len()).unwrap();
    memory.write(0, tensor.bytes());
    Place { memory: Arc::new(memory), offset_bytes: 0, layout: *tensor.layout() }
}

/// The same as bytes that nobody can write.
fn weight(tensor: &HostTensor) -> Place {
    let memory = Memory::zeroed(tensor.bytes().len()).unwrap();
    memory.write(0, tensor.bytes());
    Place { memory: Arc::new(memory.freeze()), offset_bytes: 0, layout: *tensor.layout() }
}

/// y {M, N} of packed tensors.
fn product(op: MulMat, a: &HostTensor, b: &HostTensor, workers: usize) -> Vec<u8> {
    product_of(op, place(a), b, workers)
}

fn product_of(op: MulMat, a: Place, b: &HostTensor, workers: usize) -> Vec<u8> {
    let op = Op::from(op);
    let y = op.infer(&[a.layout, *b.layout()]).unwrap()[0];
    let y = place(&HostTensor::zeros(y));
    let step = Step { op, inputs: vec![a, place(b)], results: vec![y.clone()] };
    Program::new(vec![step], workers, Forms::default()).unwrap().run(None).unwrap();
    let mut bytes = vec![0; y.layout.span_bytes()];
    y.memory.read(0, &mut bytes);
    bytes
}

fn row(tensor: &HostTensor, row: usize) -> HostTensor {
    let layout = Layout::contiguous(tensor.layout().dtype, &[tensor.ne()[0]]).unwrap();
    let start = row * layout.row_bytes();
    HostTensor::from_bytes(layout, tensor.bytes()[start..start + layout.row_bytes()].to_vec()).unwrap()
}

/// Every type, multiplied as it is and, where there are blocks, with rounded columns.
fn ops() -> impl Iterator<Item = (DType, MulMat)> {
    let both = MulMat::WEIGHTS.iter().flat_map(|&dtype| [(dtype, false), (dtype, true)]);
    both.filter(|(dtype, quantize)| !quantize || dtype.is_block())
        .map(|(dtype, quantize)| (dtype, MulMat { quantize }))
}

#[test]
fn an_output_does_not_depend_on_its_neighbours() {
    for (dtype, op) in ops() {
        for (k, m, n) in [(96, 11, 7), (1312, 9, 250), (32, 1, 70)] {
            let k = usize::next_multiple_of(k, dtype.block_len());
            let mut values = Values::new(k as u64);
            let a = values.tensor(dtype, &[k, m], -1.0, 1.0);
            let b = values.tensor(DType::F32, &[k, n], -1.0, 1.0);
            let together = product(op, &a, &b, 1);
            assert!(product(op, &a, &b, 3) == together, "{dtype} {k} {m} {n}: three workers");
            for column in (0..n).step_by(5) {
                let alone = product(op, &a, &row(&b, column), 1);
                assert!(alone == together[column * m * 4..][..m * 4], "{dtype} {k} {m} {n}: column {column}");
            }
            for output in 0..m {
                let alone = product(op, &row(&a, output), &row(&b, n - 1), 2);
                let at = ((n - 1) * m + output) * 4;
                assert!(alone == together[at..at + 4], "{dtype} {k} {m} {n}: row {output}");
            }
        }
    }
}

#[test]
fn a_weight_that_was_packed_once_is_one_that_is_packed_anew() {
    for (dtype, op) in ops() {
        for (k, m, n) in [(1312, 37, 1), (800, 131, 5), (96, 80, 33)] {
            let k = usize::next_multiple_of(k, dtype.block_len());
            let mut values = Values::new(k as u64 + 1);
            let a = values.tensor(dtype, &[k, m], -1.0, 1.0);
            let b = values.tensor(DType::F32, &[k, n], -1.0, 1.0);
            let packed = weight(&a);
            let want = product(op, &a, &b, 1);
            // The second program finds the panels of the first.
            for workers in [1, 3] {
                let got = product_of(op, packed.clone(), &b, workers);
                assert!(got == want, "{dtype} {k} {m} {n}: {workers} workers");
            }
        }
    }
}
