//! The plots as one vector picture: a panel for each experiment, the first figure of each over its x axis.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use trawl_view::text;

use super::Source;
use super::plot::{Dot, Line, Palette, Plot, plot};
use super::tables::figure;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Failure<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

const WIDTH: u32 = 1200;
const HEIGHT: u32 = 420;
/// Room at the right of a plot for the names of its series, and its position.
const LEGEND: u32 = 300;
const KEY: i32 = 912;
const TEXT: (&str, u32) = ("sans-serif", 14);
/// The number of characters that fit into a line of TEXT: over a panel, in the legend, and before a bar.
const PANEL_LINE: usize = 160;
const LEGEND_LINE: usize = 36;
/// The horizontal range of bars, and the distance between them.
const BARS: Range<i32> = 300..960;
const BAR_STEP: i32 = 24;

/// Returns the plots of all results, one below the other. Published values are hollow squares.
pub fn svg(sources: &[Source]) -> Result<String, String> {
    let palette = Palette::of(sources);
    let panels: Vec<(String, Plot)> = sources
        .iter()
        .flat_map(|source| &source.report.experiments)
        .filter_map(|one| {
            let metric = one.definition.metrics.first()?;
            let plot = plot(one, &metric.name, String::new(), &palette);
            let (name, question) = (&one.definition.name, &one.definition.question);
            let title = format!("{name}: {question} ({} by {})", plot.y, plot.x);
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
        drawn.and_then(|()| root.present()).map_err(|error| error.to_string())?;
    }
    Ok(text)
}

fn panel<'a>(area: &Area<'a>, title: &str, plot: &Plot) -> Result<(), Failure<'a>> {
    let lines = text::lines(title, PANEL_LINE);
    for (line, y) in lines.iter().zip((8..).step_by(18)) {
        area.draw(&Text::new(line.clone(), (12, y), TEXT))?;
    }
    let (_, area) = area.split_vertically(12 + 18 * lines.len() as u32);
    let area = &area;
    if plot.is_bars() {
        return bars(area, plot);
    }
    let x = range(plot, plot.log_x, |line| line.points.iter().map(|dot| dot.x).collect());
    let y = range(plot, plot.log_y, |line| {
        let values = |dot: &Dot| [dot.low.unwrap_or(dot.y), dot.y, dot.high.unwrap_or(dot.y)];
        line.points.iter().flat_map(values).collect()
    });
    match (plot.log_x, plot.log_y) {
        (false, false) => chart(area, plot, x, y),
        (true, false) => chart(area, plot, x.log_scale(), y),
        (false, true) => chart(area, plot, x, y.log_scale()),
        (true, true) => chart(area, plot, x.log_scale(), y.log_scale()),
    }
}

fn colour(line: &Line) -> RGBColor {
    let (red, green, blue) = line.colour;
    RGBColor(red, green, blue)
}

/// Draws a bar for each series of a plot with one x value. Published values are hollow.
fn bars<'a>(area: &Area<'a>, plot: &Plot) -> Result<(), Failure<'a>> {
    let most = plot.maximum().max(f64::MIN_POSITIVE);
    let mut y = 8;
    for (line, is_published) in plot.lines() {
        for dot in &line.points {
            let names = text::lines(&line.name, LEGEND_LINE);
            for (name, at) in names.iter().zip((y..).step_by(16)) {
                area.draw(&Text::new(name.clone(), (12, at), TEXT))?;
            }
            let end = BARS.start + (dot.y / most * f64::from(BARS.end - BARS.start)) as i32;
            let style = ShapeStyle { color: colour(line).to_rgba(), filled: !is_published, stroke_width: 2 };
            area.draw(&Rectangle::new([(BARS.start, y), (end, y + 16)], style))?;
            let note = if is_published { " (published)" } else { "" };
            let value = format!("{}{note}", figure(dot.y));
            area.draw(&Text::new(value, (end + 8, y), TEXT))?;
            y += BAR_STEP.max(16 * names.len() as i32 + 8);
        }
    }
    Ok(())
}

/// Returns the range of all values with a margin; from zero on a linear axis.
fn range(plot: &Plot, is_log: bool, values: impl Fn(&Line) -> Vec<f64>) -> Range<f64> {
    let lines = plot.lines().map(|(line, _)| line);
    let usable = |value: &f64| value.is_finite() && (!is_log || *value > 0.0);
    let all: Vec<f64> = lines.flat_map(values).filter(usable).collect();
    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
    let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if all.is_empty() {
        0.1..1.0
    } else if is_log {
        least / 1.2..most * 1.2
    } else {
        least.min(0.0)..if most > 0.0 { most * 1.05 } else { 1.0 }
    }
}

fn chart<'a, X, Y>(area: &Area<'a>, plot: &Plot, x: X, y: Y) -> Result<(), Failure<'a>>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let dots = || plot.series.iter().flat_map(|line| &line.points);
    let is_whole = dots().all(|dot| dot.x.fract() == 0.0);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_right(LEGEND)
        .x_label_area_size(28)
        .y_label_area_size(72)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(8)
        .x_label_formatter(&|value| {
            if !is_whole {
                figure(*value)
            } else if (value - value.round()).abs() > 1e-6 {
                String::new()
            } else {
                // A tick is a sum of steps, and not quite the whole number that it represents.
                figure(value.round())
            }
        })
        .y_label_formatter(&|value| figure(*value))
        .label_style(TEXT)
        .draw()?;
    for line in &plot.series {
        let colour = colour(line);
        let dots = || line.points.iter().map(|dot| (dot.x, dot.y));
        // A tool's second series is dashed, its third dashed more finely.
        match line.variant {
            0 => drop(chart.draw_series(LineSeries::new(dots(), colour).point_size(3))?),
            other => {
                let (size, gap) = if other == 1 { (10, 5) } else { (3, 4) };
                let dashed = DashedLineSeries::new(dots(), size, gap, colour.stroke_width(1));
                chart.draw_series(dashed)?;
            }
        }
        chart.draw_series(line.points.iter().filter_map(|dot| {
            let (low, high) = (dot.low?, dot.high?);
            Some(ErrorBar::new_vertical(dot.x, low, dot.y, high, colour, 6))
        }))?;
    }
    for line in &plot.published {
        let colour = colour(line);
        let hollow = |dot: &Dot| EmptyElement::at((dot.x, dot.y)) + Rectangle::new([(-5, -5), (5, 5)], colour);
        chart.draw_series(line.points.iter().map(hollow))?;
    }
    let mut y = 20;
    for (line, is_published) in plot.lines() {
        let colour = colour(line);
        if is_published {
            area.draw(&Rectangle::new([(KEY + 4, y - 5), (KEY + 14, y + 5)], colour))?
        } else {
            let dash = [18, 7, 3][line.variant.min(2)];
            for x in (KEY..KEY + 18).step_by(dash + 3) {
                let end = (x + dash as i32).min(KEY + 18);
                area.draw(&PathElement::new([(x, y), (end, y)], colour))?;
            }
        }
        let name = if is_published { format!("published: {}", line.name) } else { line.name.clone() };
        for text in text::lines(&name, LEGEND_LINE) {
            area.draw(&Text::new(text, (KEY + 24, y - 7), TEXT))?;
            y += 16;
        }
        y += 4;
    }
    Ok(())
}
