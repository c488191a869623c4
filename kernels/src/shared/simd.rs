//! Which vector instructions the process uses: found once, forced lower by the environment variable
//! `SSMGRAPH_SIMD` = `scalar`, `avx2` or `avx512`, for tests and measurements.

use once_cell::sync::Lazy;
use pulp::Arch;

static ARCH: Lazy<Arch> = Lazy::new(|| choose(std::env::var("SSMGRAPH_SIMD").ok().as_deref()));

/// The instruction set that kernels dispatch to.
pub fn arch() -> Arch {
    *ARCH
}

/// Its name, as [`arch`] was chosen.
pub fn arch_name() -> &'static str {
    match arch() {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(_) => "avx512",
        #[cfg(target_arch = "x86_64")]
        Arch::V3(_) => "avx2",
        #[cfg(target_arch = "aarch64")]
        Arch::Neon(_) => "neon",
        _ => "scalar",
    }
}

/// Runs `body` compiled for the chosen instruction set; what it calls must be inlined to profit.
#[inline(always)]
pub fn vectorize<R>(body: impl FnOnce() -> R) -> R {
    struct Body<F>(F);
    impl<R, F: FnOnce() -> R> pulp::WithSimd for Body<F> {
        type Output = R;
        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _simd: S) -> R {
            (self.0)()
        }
    }
    arch().dispatch(Body(body))
}

fn choose(forced: Option<&str>) -> Arch {
    match forced {
        Some("scalar") => Arch::Scalar,
        #[cfg(target_arch = "x86_64")]
        Some("avx2") => pulp::x86::V3::try_new().map_or(Arch::Scalar, Arch::V3),
        // `avx512` is the best choice where it exists. A name that is unknown here, such as another
        // architecture's, leaves the best choice in place; `arch_name` tells which it is.
        _ => Arch::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_can_be_forced() {
        assert!(matches!(choose(Some("scalar")), Arch::Scalar));
    }
}
