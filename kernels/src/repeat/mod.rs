//! A tensor repeated along whole axes.

mod cpu;
