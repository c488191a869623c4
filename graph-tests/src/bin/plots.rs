//! Plots of the CPU backend's speed: `plots FOLDER [THREADS]` measures and writes SVG files, and prints how each time
//! grows with the size. One thread unless another number is given; the plot against threads goes up to all cores.

use plotters::prelude::*;
use ssmgraph::backend::Devices;
use ssmgraph::ops::workload::{Workload, conv_step, f32s, gated_delta_net, mamba1_scan, mamba2_scan};
use ssmgraph::ops::{Argmax, Cumsum, RmsNorm, SoftMax, Sum};
use ssmgraph::{Graph, Session};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs of each point go on for this long; the median counts.
const POINT_TIME: Duration = Duration::from_millis(150);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Points with a name.
struct Series {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

impl Series {
    fn of(name: &'static str, places: &[usize], value: impl Fn(usize) -> Outcome<f64>) -> Outcome<Series> {
        eprintln!("{name}");
        let point = |&place: &usize| Ok((place as f64, value(place)?));
        Ok(Series { name, points: places.iter().map(point).collect::<Outcome<_>>()? })
    }

    /// The power with which values grow from the first place to the last.
    fn exponent(&self) -> f64 {
        let [first, .., last] = self.points[..] else { return f64::NAN };
        (last.1 / first.1).ln() / (last.0 / first.0).ln()
    }
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, threads) = match &arguments[..] {
        [folder] => (folder, 1),
        [folder, threads] => (folder, threads.parse()?),
        _ => return Err("usage: plots FOLDER [THREADS]".into()),
    };
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder)?;
    let speed = "tokens per second";
    draw(
        &folder.join("tokens.svg"),
        ["Throughput against tokens of a call", "tokens", speed],
        &by_tokens(threads)?,
    )?;
    draw(&folder.join("states.svg"), ["Throughput against states", "states", speed], &by_states(threads)?)?;
    draw(&folder.join("threads.svg"), ["Throughput against threads", "threads", speed], &by_threads()?)?;
    let times = by_size(threads)?;
    for series in &times {
        println!("{}: time grows with the {:.2}th power of the size", series.name, series.exponent());
    }
    draw(&folder.join("size.svg"), ["Time against size", "elements", "microseconds"], &times)
}

fn by_tokens(threads: usize) -> Outcome<Vec<Series>> {
    let of = |name, work: fn(usize) -> Workload| {
        Series::of(name, &[1, 2, 4, 16, 64, 256, 1024], |tokens| {
            Ok(tokens as f64 / seconds(work(tokens), threads)?)
        })
    };
    Ok(vec![
        of("ssm_scan, Mamba-1, 1536 channels", |tokens| mamba1_scan(16, 1536, tokens))?,
        of("ssm_scan, Mamba-2, 24 heads", |tokens| mamba2_scan(128, 24, tokens))?,
        of("gated_delta_net, 16 heads", |tokens| gated_delta_net(128, 16, tokens))?,
        of("ssm_conv_step, 3328 channels", |tokens| conv_step(3328, tokens))?,
    ])
}

fn by_states(threads: usize) -> Outcome<Vec<Series>> {
    const TOKENS: usize = 64;
    let of = |name, places: &[usize], work: fn(usize) -> Workload| {
        Series::of(name, places, |states| Ok(TOKENS as f64 / seconds(work(states), threads)?))
    };
    Ok(vec![
        of("ssm_scan, Mamba-1, 1536 channels", &[4, 8, 16, 32, 64], |states| {
            mamba1_scan(states, 1536, TOKENS)
        })?,
        of("ssm_scan, Mamba-2, 24 heads", &[16, 32, 64, 128, 256], |states| mamba2_scan(states, 24, TOKENS))?,
        of("gated_delta_net, 16 heads", &[16, 32, 64, 128, 256], |size| gated_delta_net(size, 16, TOKENS))?,
    ])
}

fn by_threads() -> Outcome<Vec<Series>> {
    const TOKENS: usize = 256;
    let cores = std::thread::available_parallelism()?.get();
    let counts: Vec<usize> = (1..=cores).collect();
    let of = |name, work: fn() -> Workload| {
        Series::of(name, &counts, |threads| Ok(TOKENS as f64 / seconds(work(), threads)?))
    };
    Ok(vec![
        of("ssm_scan, Mamba-1, 1536 channels", || mamba1_scan(16, 1536, TOKENS))?,
        of("ssm_scan, Mamba-2, 24 heads", || mamba2_scan(128, 24, TOKENS))?,
        of("gated_delta_net, 16 heads", || gated_delta_net(128, 16, TOKENS))?,
        of("ssm_conv_step, 3328 channels", || conv_step(3328, TOKENS))?,
    ])
}

/// One row of more and more elements, or more and more rows.
fn by_size(threads: usize) -> Outcome<Vec<Series>> {
    let of = |name, work: fn(usize) -> Workload| {
        let sizes: Vec<usize> = (13..=24).map(|power| 1 << power).collect();
        Series::of(name, &sizes, |size| Ok(1e6 * seconds(work(size), threads)?))
    };
    Ok(vec![
        of("argmax, one row", |size| Workload { op: Argmax {}.into(), inputs: vec![f32s(&[size])] })?,
        of("sum, one row", |size| Workload { op: Sum {}.into(), inputs: vec![f32s(&[size])] })?,
        of("cumsum, one row", |size| Workload { op: Cumsum {}.into(), inputs: vec![f32s(&[size])] })?,
        of("rms_norm, rows of 1024", |size| Workload {
            op: RmsNorm { eps: 1e-6, weight: false }.into(),
            inputs: vec![f32s(&[1024, size / 1024])],
        })?,
        of("soft_max, rows of 1024", |size| Workload {
            op: SoftMax { scale: 1.0, mask: false }.into(),
            inputs: vec![f32s(&[1024, size / 1024])],
        })?,
    ])
}

/// Median time of a run.
fn seconds(work: Workload, threads: usize) -> Outcome<f64> {
    let mut graph = Graph::new();
    let mut operands = Vec::new();
    for (index, input) in work.inputs.iter().enumerate() {
        operands.push(graph.input(&format!("operand {index}"), input.layout().dtype, &input.ne())?);
    }
    for result in graph.op(work.op, &operands)? {
        graph.output(result)?;
    }
    let mut session = Session::new(&graph, &Devices::cpu(Some(threads)))?;
    for (&operand, input) in operands.iter().zip(&work.inputs) {
        session.set_tensor(operand, input)?;
    }
    session.run()?;
    let (mut times, begin) = (Vec::new(), Instant::now());
    while times.len() < 3 || begin.elapsed() < POINT_TIME {
        let start = Instant::now();
        session.run()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// One chart, both axes logarithmic.
fn draw(path: &Path, [title, x_name, y_name]: [&str; 3], series: &[Series]) -> Outcome {
    let points = || series.iter().flat_map(|series| &series.points);
    let range = |of: fn(&(f64, f64)) -> f64, room: f64| {
        let low = points().map(of).fold(f64::INFINITY, f64::min);
        low / room..points().map(of).fold(0.0, f64::max) * room
    };
    let root = SVGBackend::new(path, (800, 500)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(
            range(|point| point.0, 1.1).log_scale(),
            range(|point| point.1, 1.5).log_scale(),
        )?;
    let count = |value: &f64| if *value >= 1.0 { format!("{value:.0}") } else { format!("{value}") };
    chart
        .configure_mesh()
        .x_desc(x_name)
        .y_desc(y_name)
        .x_label_formatter(&count)
        .y_label_formatter(&count)
        .draw()?;
    for (index, Series { name, points }) in series.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let line = LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}
