//! The plots as one vector picture: a panel for each experiment, the first figure of each over its x axis.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::Source;
use super::plot::{Dot, Line, Plot, plot};
use super::table::figure;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

const WIDTH: u32 = 1200;
const HEIGHT: u32 = 420;
/// Room at the right of a plot for the names of its series, and where they begin.
const LEGEND: u32 = 300;
const KEY: i32 = 912;
const TITLE: (&str, u32) = ("sans-serif", 22);
const TEXT: (&str, u32) = ("sans-serif", 14);
/// Okabe and Ito's colours, which people with any colour vision tell apart.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// The plots of all results, one below the other. Published values are hollow squares.
pub fn svg(sources: &[Source]) -> Result<String, String> {
    let panels: Vec<(String, Plot)> = sources
        .iter()
        .flat_map(|source| &source.report.experiments)
        .filter_map(|one| {
            let metric = one.definition.metrics.first()?;
            let plot = plot(one, &metric.name, String::new());
            let title = format!("{}: {}", one.definition.name, one.definition.question);
            (!plot.series.is_empty()).then_some((title, plot))
        })
        .collect();
    let mut text = String::new();
    let count = panels.len().max(1);
    let height = HEIGHT.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        let drawn = root.fill(&WHITE).and_then(|()| {
            root.split_evenly((count, 1))
                .iter()
                .zip(&panels)
                .try_for_each(|(area, (title, plot))| panel(area, title, plot))
        });
        drawn
            .and_then(|()| root.present())
            .map_err(|error| error.to_string())?;
    }
    Ok(text)
}

fn panel<'a>(area: &Area<'a>, title: &str, plot: &Plot) -> Result<(), Failure<'a>> {
    let x = range(plot, plot.log_x, |line| {
        line.points.iter().map(|dot| dot.x).collect()
    });
    let y = range(plot, plot.log_y, |line| {
        let values = |dot: &Dot| [dot.low.unwrap_or(dot.y), dot.y, dot.high.unwrap_or(dot.y)];
        line.points.iter().flat_map(values).collect()
    });
    match (plot.log_x, plot.log_y) {
        (false, false) => chart(area, title, plot, x, y),
        (true, false) => chart(area, title, plot, x.log_scale(), y),
        (false, true) => chart(area, title, plot, x, y.log_scale()),
        (true, true) => chart(area, title, plot, x.log_scale(), y.log_scale()),
    }
}

/// All values with a margin; from zero where the axis is linear.
fn range(plot: &Plot, is_log: bool, values: impl Fn(&Line) -> Vec<f64>) -> Range<f64> {
    let lines = plot.series.iter().chain(&plot.published);
    let usable = |value: &f64| value.is_finite() && (!is_log || *value > 0.0);
    let all: Vec<f64> = lines.flat_map(values).filter(usable).collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match is_log {
        _ if all.is_empty() => 0.1..1.0,
        true => least / 1.2..most * 1.2,
        false => least.min(0.0)..if most > 0.0 { most * 1.05 } else { 1.0 },
    }
}

fn chart<'a, X, Y>(area: &Area<'a>, title: &str, plot: &Plot, x: X, y: Y) -> Result<(), Failure<'a>>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(title, TITLE)
        .margin(12)
        .margin_right(LEGEND)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(plot.x.as_str())
        .y_desc(plot.y.as_str())
        .x_label_formatter(&|value| figure(*value))
        .y_label_formatter(&|value| figure(*value))
        .label_style(TEXT)
        .draw()?;
    let lines = plot.series.iter().zip(COLOURS.iter().cycle());
    for (line, colour) in lines.clone() {
        let dots = line.points.iter().map(|dot| (dot.x, dot.y));
        chart.draw_series(LineSeries::new(dots, colour).point_size(3))?;
        chart.draw_series(line.points.iter().filter_map(|dot| {
            let (low, high) = (dot.low?, dot.high?);
            Some(ErrorBar::new_vertical(dot.x, low, dot.y, high, *colour, 6))
        }))?;
    }
    let published = plot.published.iter().zip(COLOURS.iter().cycle());
    for (line, colour) in published.clone() {
        let hollow = |dot: &Dot| {
            EmptyElement::at((dot.x, dot.y)) + Rectangle::new([(-5, -5), (5, 5)], *colour)
        };
        chart.draw_series(line.points.iter().map(hollow))?;
    }
    let names = lines
        .map(|(line, colour)| (line.name.clone(), *colour, false))
        .chain(
            published.map(|(line, colour)| (format!("published: {}", line.name), *colour, true)),
        );
    for ((name, colour, is_published), y) in names.zip((50..).step_by(20)) {
        match is_published {
            true => area.draw(&Rectangle::new(
                [(KEY + 4, y - 5), (KEY + 14, y + 5)],
                colour,
            ))?,
            false => area.draw(&PathElement::new([(KEY, y), (KEY + 18, y)], colour))?,
        }
        area.draw(&Text::new(name, (KEY + 24, y - 7), TEXT))?;
    }
    Ok(())
}
