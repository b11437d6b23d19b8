//! A plot as data: what the page's script and the vector pictures draw.

use serde::Serialize;

use super::palette::{Palette, tool};
use crate::model::Experiment;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plot {
    pub id: String,
    pub x: String,
    pub y: String,
    pub log_x: bool,
    pub log_y: bool,
    pub series: Vec<Line>,
    pub published: Vec<Line>,
}

#[derive(Debug, Serialize)]
pub struct Line {
    pub name: String,
    pub colour: (u8, u8, u8),
    /// Tells series of one tool apart: 0 for the first.
    pub variant: usize,
    pub points: Vec<Dot>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Dot {
    pub x: f64,
    pub y: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

impl Plot {
    /// Returns whether all points stand over one value of the x axis, so that bars say more than a line.
    pub fn is_bars(&self) -> bool {
        let lines = self.series.iter().chain(&self.published);
        let mut xs = lines.flat_map(|line| &line.points).map(|dot| dot.x);
        let first = xs.next();
        first.is_some_and(|first| xs.all(|x| x == first))
    }

    /// Returns whether both show the same values.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let points = |plot: &Self| -> Vec<(String, Vec<(f64, f64)>)> {
            let lines = plot.series.iter().chain(&plot.published);
            let dots = |line: &Line| line.points.iter().map(|dot| (dot.x, dot.y)).collect();
            lines.map(|line| (line.name.clone(), dots(line))).collect()
        };
        points(self) == points(other)
    }

    /// Returns the largest value that a bar or its interval reaches.
    pub fn most(&self) -> f64 {
        let lines = self.series.iter().chain(&self.published);
        let dots = lines.flat_map(|line| &line.points);
        dots.map(|dot| dot.high.unwrap_or(dot.y).max(dot.y))
            .fold(0.0, f64::max)
    }
}

pub fn plot(one: &Experiment, metric: &str, id: String, palette: &Palette) -> Plot {
    let definition = &one.definition;
    let axis = definition
        .metrics
        .iter()
        .find(|axis| axis.name == metric)
        .cloned()
        .unwrap_or_default();
    let with_unit = |label: &str, unit: &str| match unit {
        "" => label.to_owned(),
        unit => format!("{label} ({unit})"),
    };
    let mut tools: Vec<String> = Vec::new();
    let mut variant = |series: &str| {
        let tool = tool(series).to_owned();
        let before = tools.iter().filter(|known| **known == tool).count();
        tools.push(tool);
        before
    };
    let series = one.series().into_iter().filter_map(|name| {
        let points: Vec<Dot> = one
            .line(&name, metric)
            .into_iter()
            .map(|point| Dot {
                x: point.x,
                y: point.value.median,
                low: Some(point.value.low),
                high: Some(point.value.high),
            })
            .collect();
        let colour = palette.colour(&name);
        (!points.is_empty()).then(|| Line {
            variant: variant(&name),
            name,
            colour,
            points,
        })
    });
    let series: Vec<Line> = series.collect();
    let published = definition
        .published
        .iter()
        .filter(|one| one.metric == metric)
        .map(|one| Line {
            name: one.series.clone(),
            colour: palette.colour(&one.series),
            variant: 0,
            points: one
                .points
                .iter()
                .map(|[x, y]| Dot {
                    x: *x,
                    y: *y,
                    low: None,
                    high: None,
                })
                .collect(),
        });
    Plot {
        id,
        x: with_unit(&definition.x.label, &definition.x.unit),
        y: with_unit(&axis.label, &axis.unit),
        log_x: definition.x.log,
        log_y: axis.log,
        series,
        published: published.collect(),
    }
}
