//! Matrix products C = alpha · op(A) · op(B) + beta · C, columns first.

use crate::driver;
use half::{bf16, f16};
use std::ffi::{c_int, c_void};

/// An element type, by its `cudaDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 0
    F32,
    /// 2
    F16,
    /// 14
    Bf16,
}

impl Element {
    /// The type of a `cudaDataType`; `None` for those that are not emulated.
    pub fn from_number(number: c_int) -> Option<Element> {
        match number {
            0 => Some(Element::F32),
            2 => Some(Element::F16),
            14 => Some(Element::Bf16),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        if self == Element::F32 { 4 } else { 2 }
    }
}

/// A batch of matrices in device memory, columns first.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Where element (0, 0) of the first is.
    pub address: usize,
    /// Element type.
    pub element: Element,
    /// Elements from one column to the next.
    pub column: usize,
    /// Elements from one matrix to the next.
    pub stride: usize,
    /// Whether the product takes rows for columns.
    pub transposed: bool,
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of C, columns of C, and the length of the sums.
    pub sizes: [usize; 3],
    /// Factor of the product.
    pub alpha: f64,
    /// Factor of what C holds; with 0, C is not read.
    pub beta: f64,
    /// The first operand.
    pub a: Matrix,
    /// The second operand.
    pub b: Matrix,
    /// The result, never transposed.
    pub c: Matrix,
    /// How many products.
    pub batch: usize,
}

impl Matrix {
    /// Rows and columns as stored, of a matrix that the product sees as `rows` × `columns`.
    fn stored(&self, rows: usize, columns: usize) -> (usize, usize) {
        if self.transposed { (columns, rows) } else { (rows, columns) }
    }

    /// Whether columns do not overlap, and all matrices lie inside an allocation.
    fn fits(&self, rows: usize, columns: usize, batch: usize) -> bool {
        let (rows, columns) = self.stored(rows, columns);
        if rows == 0 || columns == 0 || batch == 0 {
            return true;
        }
        let elements = (batch - 1) * self.stride + (columns - 1) * self.column + rows;
        driver::is_allocated(self.address, elements * self.element.bytes())
    }

    fn place(&self, matrix: usize, row: usize, column: usize) -> usize {
        let (row, column) = self.stored(row, column);
        let index = matrix * self.stride + column * self.column + row;
        self.address + index * self.element.bytes()
    }

    fn get(&self, matrix: usize, row: usize, column: usize) -> f64 {
        let place = self.place(matrix, row, column);
        // SAFETY: `fits` has held for this matrix, and the driver runs nothing else meanwhile.
        unsafe {
            match self.element {
                Element::F32 => (place as *const f32).read_unaligned().into(),
                Element::F16 => (place as *const f16).read_unaligned().into(),
                Element::Bf16 => (place as *const bf16).read_unaligned().into(),
            }
        }
    }

    fn set(&self, matrix: usize, row: usize, column: usize, value: f64) {
        let place = self.place(matrix, row, column);
        // SAFETY: as in `get`.
        unsafe {
            match self.element {
                Element::F32 => (place as *mut f32).write_unaligned(value as f32),
                Element::F16 => (place as *mut f16).write_unaligned(f16::from_f64(value)),
                Element::Bf16 => (place as *mut bf16).write_unaligned(bf16::from_f64(value)),
            }
        }
    }
}

impl Product {
    /// Whether the matrices' columns are as long as their rows are many.
    pub fn has_valid_columns(&self) -> bool {
        let [m, n, k] = self.sizes;
        let long_enough =
            |matrix: &Matrix, rows, columns| matrix.column >= matrix.stored(rows, columns).0.max(1);
        long_enough(&self.a, m, k) && long_enough(&self.b, k, n) && long_enough(&self.c, m, n)
    }

    fn run(&self) {
        let [m, n, k] = self.sizes;
        let operands = [("A", &self.a, m, k), ("B", &self.b, k, n), ("C", &self.c, m, n)];
        for (name, matrix, rows, columns) in operands {
            if !matrix.fits(rows, columns, self.batch) {
                let address = matrix.address;
                eprintln!("ssmgraph-emulator: cuBLAS: {name} at 0x{address:x} is not inside an allocation");
                return;
            }
        }
        for matrix in 0..self.batch {
            for column in 0..n {
                for row in 0..m {
                    self.run_element(matrix, row, column);
                }
            }
        }
    }

    fn run_element(&self, matrix: usize, row: usize, column: usize) {
        let terms = (0..self.sizes[2]).map(|i| self.a.get(matrix, row, i) * self.b.get(matrix, i, column));
        let product = self.alpha * terms.sum::<f64>();
        let old = if self.beta == 0.0 { 0.0 } else { self.beta * self.c.get(matrix, row, column) };
        self.c.set(matrix, row, column, product + old);
    }
}

/// Runs a [`Product`] in a stream.
pub extern "C" fn run(data: *mut c_void) {
    // SAFETY: only `submit` passes this function on, with a product that is never freed.
    let product = unsafe { *data.cast::<Product>() };
    product.run();
}

/// Puts a product behind a stream's work; false when the driver refuses.
pub fn submit(stream: usize, product: Product) -> bool {
    // Kept for good: a graph may run it again at any time.
    let data: *mut Product = Box::leak(Box::new(product));
    driver::launch_host(stream, run, data.cast())
}
