//! Matrix products for the tests with and without cuBLAS.

use emulator::Counts;
use graph_tests::cuda;
use ssmgraph::backend::Devices;
use ssmgraph::ops::DType;
use ssmgraph::ops::case::Values;
use ssmgraph::{Graph, Session, Tensor};

/// A product of a {k, m, a batch} by b {k, n, batch}.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// m, n, k.
    pub sizes: [usize; 3],
    /// Matrices of a: 1, or as many as of b.
    pub a_batch: usize,
    /// Matrices of b.
    pub batch: usize,
}

/// Around the least number of columns, one matrix and several, a row vector.
pub const SHAPES: [Shape; 7] = [
    Shape { sizes: [24, 16, 40], a_batch: 1, batch: 1 },
    Shape { sizes: [24, 15, 40], a_batch: 1, batch: 1 },
    Shape { sizes: [65, 33, 130], a_batch: 1, batch: 1 },
    Shape { sizes: [7, 20, 19], a_batch: 1, batch: 3 },
    Shape { sizes: [7, 20, 19], a_batch: 3, batch: 3 },
    Shape { sizes: [1, 17, 64], a_batch: 1, batch: 1 },
    Shape { sizes: [33, 64, 1], a_batch: 2, batch: 2 },
];

/// A session of one product: a, b and y.
pub fn product(devices: &Devices, shape: &Shape) -> (Session, [Tensor; 3]) {
    let [m, n, k] = shape.sizes;
    let mut graph = Graph::new();
    let a = graph.input("a", DType::F32, &[k, m, shape.a_batch]).unwrap();
    let b = graph.input("b", DType::F32, &[k, n, shape.batch]).unwrap();
    let y = graph.mul_mat(a, b).unwrap();
    graph.output(y).unwrap();
    (Session::new(&graph, devices).unwrap(), [a, b, y])
}

/// What came of three runs.
pub struct Outcome {
    /// The driver's counts of the first run.
    pub first: Counts,
    /// Those of the second, which is captured.
    pub captured: Counts,
    /// Those of the third.
    pub last: Counts,
    /// The product, the same each time.
    pub values: Vec<f32>,
    /// What the session says of the device.
    pub notes: Vec<String>,
}

/// Runs a product eagerly, captured and replayed.
pub fn run_three_times(devices: &Devices, shape: &Shape) -> Outcome {
    let emulator = cuda::emulator();
    let [m, n, k] = shape.sizes;
    let (mut session, [a, b, y]) = product(devices, shape);
    let mut values = Values::new(1);
    session.set_tensor(a, &values.tensor(DType::F32, &[k, m, shape.a_batch], -1.0, 1.0)).unwrap();
    session.set_tensor(b, &values.tensor(DType::F32, &[k, n, shape.batch], -1.0, 1.0)).unwrap();
    let mut runs = Vec::new();
    for _ in 0..3 {
        emulator.reset_counts();
        session.run().unwrap();
        runs.push((emulator.counts(), session.get::<f32>(y).unwrap()));
    }
    assert!(runs.iter().all(|run| run.1 == runs[0].1), "{shape:?}: runs differ");
    let [first, captured, last] = [0, 1, 2].map(|run: usize| runs[run].0);
    Outcome { first, captured, last, values: runs.swap_remove(0).1, notes: session.report().notes }
}

/// Compares within 1e-6 of the values' mean square.
///
/// Panics when they differ by more.
pub fn compare(got: &[f32], want: &[f32], shape: &Shape) {
    assert_eq!(got.len(), want.len(), "{shape:?}");
    let square = |value: f64| value * value;
    let error: f64 = got.iter().zip(want).map(|(&g, &w)| square(f64::from(g) - f64::from(w))).sum();
    let power: f64 = want.iter().map(|&w| square(f64::from(w))).sum();
    println!("{shape:?}: normalised mean square error {:e}", error / power);
    assert!(error <= 1e-6 * power, "{shape:?}: {error:e} of {power:e}");
}
