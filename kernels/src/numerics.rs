//! How strictly results are held to one order of arithmetic, and which form of a kernel runs.

use crate::Declined;

/// Whether a result may depend on what it is computed together with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// A sequence's result depends neither on its neighbours in the batch nor on how its tokens were split
    /// over calls, to the bit.
    #[default]
    Exact,
    /// Sums may be taken in whatever order is fastest for the shape, within the tolerance of the op.
    Fast,
}

/// One of several forms of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// Its name, unique among the forms of the kernel.
    pub name: &'static str,
    /// The least strict numerics under which it may stand for the op. An exact form gives the op's bits of this
    /// device for every call or obeys the same laws among its own results; a fast one is near them.
    pub numerics: Numerics,
    /// What it does, as part of a sentence.
    pub about: &'static str,
}

/// Which form of each kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forms {
    /// Under `Exact` the first form of each kernel; under `Fast` its first fast one, where there is one and it
    /// covers the call.
    Of(Numerics),
    /// The form with this name of each kernel that has several, and the only one of the others. A kernel that
    /// lacks it, or whose form does not cover a call, declines.
    Named(&'static str),
}

impl Default for Forms {
    fn default() -> Forms {
        Forms::Of(Numerics::Exact)
    }
}

impl Forms {
    /// Whether sums may be taken in any order.
    pub fn is_fast(self) -> bool {
        self == Forms::Of(Numerics::Fast)
    }

    /// The place among a kernel's `variants` of the form that runs a call; 0 for a kernel of one form. `covers`
    /// says whether a form runs the call.
    ///
    /// Errors: there is no form of the name, or what `covers` says of the form that was asked for.
    pub fn choose(
        self,
        variants: &[Variant],
        covers: impl Fn(usize) -> Result<(), Declined>,
    ) -> Result<usize, Declined> {
        let place = |wanted: &dyn Fn(&Variant) -> bool| variants.iter().position(wanted);
        match self {
            _ if variants.is_empty() => Ok(0),
            Forms::Of(Numerics::Exact) => covers(0).map(|()| 0),
            Forms::Of(Numerics::Fast) => match place(&|form| form.numerics == Numerics::Fast) {
                Some(fast) if covers(fast).is_ok() => Ok(fast),
                _ => covers(0).map(|()| 0),
            },
            Forms::Named(name) => {
                let found = place(&|form| form.name == name).ok_or_else(|| {
                    let names: Vec<&str> = variants.iter().map(|form| form.name).collect();
                    Declined(format!("there is no form {name} here, only {}", names.join(", ")))
                })?;
                covers(found).map(|()| found)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: [Variant; 3] = [
        Variant { name: "tree", numerics: Numerics::Exact, about: "" },
        Variant { name: "chain", numerics: Numerics::Exact, about: "" },
        Variant { name: "loose", numerics: Numerics::Fast, about: "" },
    ];

    fn small(place: usize) -> Result<(), Declined> {
        if place == 2 { Err(Declined("too large".into())) } else { Ok(()) }
    }

    #[test]
    fn a_form_by_name_is_that_form_or_none() {
        assert_eq!(Forms::Named("chain").choose(&FORMS, small), Ok(1));
        assert_eq!(Forms::Named("loose").choose(&FORMS, small), Err(Declined("too large".into())));
        let unknown = Forms::Named("ring").choose(&FORMS, small).unwrap_err();
        assert_eq!(unknown.0, "there is no form ring here, only tree, chain, loose");
        assert_eq!(Forms::Named("ring").choose(&[], small), Ok(0));
    }

    #[test]
    fn fast_takes_the_exact_form_where_the_fast_one_ends() {
        assert_eq!(Forms::default().choose(&FORMS, |_| Ok(())), Ok(0));
        assert_eq!(Forms::Of(Numerics::Fast).choose(&FORMS, |_| Ok(())), Ok(2));
        assert_eq!(Forms::Of(Numerics::Fast).choose(&FORMS, small), Ok(0));
        assert_eq!(Forms::Of(Numerics::Fast).choose(&FORMS[..2], small), Ok(0));
    }
}
