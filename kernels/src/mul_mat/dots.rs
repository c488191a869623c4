//! Rows against a row, for the scores of attention.

use pulp::Simd;

/// The accumulators of M rows with one more, all of the same length; a row's lanes are still to be summed.
#[inline(always)]
pub(crate) fn dots<S: Simd, const M: usize>(simd: S, rows: [&[f32]; M], with: &[f32]) -> [S::f32s; M] {
    let (with_steps, with_rest) = S::as_simd_f32s(with);
    let mut steps: [&[S::f32s]; M] = [&[]; M];
    for m in 0..M {
        steps[m] = &S::as_simd_f32s(rows[m]).0[..with_steps.len()];
    }
    let mut sums = [simd.splat_f32s(0.0); M];
    for (step, with) in with_steps.iter().enumerate() {
        for m in 0..M {
            sums[m] = simd.mul_add_e_f32s(steps[m][step], *with, sums[m]);
        }
    }
    if !with_rest.is_empty() {
        let with_rest = simd.partial_load_f32s(with_rest);
        for m in 0..M {
            let rest = simd.partial_load_f32s(S::as_simd_f32s(rows[m]).1);
            sums[m] = simd.mul_add_e_f32s(rest, with_rest, sums[m]);
        }
    }
    sums
}
