//! A plot as data: what the page's script and the vector pictures draw.

use serde::Serialize;

use crate::study::model::Experiment;

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
    pub points: Vec<Dot>,
}

#[derive(Debug, Serialize)]
pub struct Dot {
    pub x: f64,
    pub y: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

pub fn plot(one: &Experiment, metric: &str, id: String) -> Plot {
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
        (!points.is_empty()).then_some(Line { name, points })
    });
    let published = definition
        .published
        .iter()
        .filter(|one| one.metric == metric)
        .map(|one| Line {
            name: one.series.clone(),
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
        series: series.collect(),
        published: published.collect(),
    }
}
