//! Tables and numbers as text.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle, presets};

/// How a table is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Columns apart, a line under the head.
    Plain,
    /// A Markdown table.
    Markdown,
}

/// A table as text, without a line break at the end. Columns from `numbers_from` on are aligned to the right.
pub fn table(style: Style, head: &[&str], rows: &[Vec<String>], numbers_from: usize) -> String {
    let mut table = Table::new();
    let preset = match style {
        Style::Plain => TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')),
        Style::Markdown => presets::ASCII_MARKDOWN,
    };
    table.load_style(preset).set_content_arrangement(ContentArrangement::Disabled).set_header(head.to_vec());
    table.add_rows(rows.iter().cloned());
    for column in table.column_iter_mut().skip(numbers_from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// `1.50 MiB` and the like.
pub fn bytes(count: usize) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

/// Smallest, median and largest of some figures.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Of at least one figure; of none, zeros.
    pub fn of(mut figures: Vec<f64>) -> Spread {
        figures.sort_by(f64::total_cmp);
        let Some((&min, &max)) = figures.first().zip(figures.last()) else {
            return Spread { median: 0.0, min: 0.0, max: 0.0 };
        };
        let middle = figures.len() / 2;
        let median = match figures.len() % 2 {
            0 => (figures[middle - 1] + figures[middle]) / 2.0,
            _ => figures[middle],
        };
        Spread { median, min, max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_have_a_middle() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0, 10.0]);
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.5, 10.0));
        assert_eq!(Spread::of(vec![4.0]).median, 4.0);
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(1536 << 10), "1.50 MiB");
    }
}
