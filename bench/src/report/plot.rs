//! A plot as data, drawn by the page's script and as a vector picture.

use serde::Serialize;

use super::Source;
use crate::model::Experiment;
use crate::peers::Peers;

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
    /// Distinguishes series of one tool: 0 for the first.
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
    /// Returns the measured lines and then the published ones, each with whether it is published.
    pub fn lines(&self) -> impl Iterator<Item = (&Line, bool)> {
        let own = self.series.iter().map(|line| (line, false));
        own.chain(self.published.iter().map(|line| (line, true)))
    }

    fn dots(&self) -> impl Iterator<Item = &Dot> {
        self.lines().flat_map(|(line, _)| &line.points)
    }

    /// Returns whether all points have one x value, for which bars are clearer than a line.
    pub fn is_bars(&self) -> bool {
        let mut xs = self.dots().map(|dot| dot.x);
        let first = xs.next();
        first.is_some_and(|first| xs.all(|x| x == first))
    }

    /// Returns whether both show the same values.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let values = |line: &Line| -> Vec<(f64, f64)> { line.points.iter().map(|dot| (dot.x, dot.y)).collect() };
        let own = self.lines().map(|(line, _)| (&line.name, values(line)));
        own.eq(other.lines().map(|(line, _)| (&line.name, values(line))))
    }

    /// Returns the largest value that a bar or its interval reaches.
    pub fn maximum(&self) -> f64 {
        self.dots().map(|dot| dot.high.unwrap_or(dot.y).max(dot.y)).fold(0.0, f64::max)
    }
}

pub fn plot(one: &Experiment, metric: &str, id: String, palette: &Palette) -> Plot {
    let definition = &one.definition;
    let axis = definition.metrics.iter().find(|axis| axis.name == metric).cloned().unwrap_or_default();
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
        (!points.is_empty()).then(|| Line { variant: variant(&name), name, colour, points })
    });
    let series: Vec<Line> = series.collect();
    let published = definition.published.iter().filter(|one| one.metric == metric).map(|one| {
        let dot = |&[x, y]: &[f64; 2]| Dot { x, y, low: None, high: None };
        Line {
            name: one.series.clone(),
            colour: palette.colour(&one.series),
            variant: 0,
            points: one.points.iter().map(dot).collect(),
        }
    });
    Plot {
        id,
        x: definition.x.titled(),
        y: axis.titled(),
        log_x: definition.x.log,
        log_y: axis.log,
        series,
        published: published.collect(),
    }
}

// The colours of a report: each tool has one colour in all plots, and dashes and marks distinguish its series.

/// Okabe and Ito's colours, which people with any colour vision can distinguish, and more of that kind.
const COLOURS: [(u8, u8, u8); 12] = [
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (127, 127, 127),
    (184, 168, 0),
    (136, 34, 85),
    (68, 170, 153),
    (170, 68, 153),
    (170, 119, 68),
];

/// The tools of all plots, in the order of their first series; trawl is the first.
pub struct Palette(Vec<String>);

impl Palette {
    pub fn of(sources: &[Source]) -> Self {
        let mut tools = vec!["trawl".to_owned()];
        let experiments = sources.iter().flat_map(|source| &source.report.experiments);
        for one in experiments {
            let published = one.definition.published.iter().map(|one| one.series.clone());
            for series in one.series().into_iter().chain(published) {
                let tool = tool(&series);
                if !tools.iter().any(|known| known == tool) {
                    tools.push(tool.to_owned());
                }
            }
        }
        Self(tools)
    }

    /// Returns the red, green and blue of a series' tool.
    pub fn colour(&self, series: &str) -> (u8, u8, u8) {
        let tool = tool(series);
        let at = self.0.iter().position(|known| known == tool);
        COLOURS[at.unwrap_or_default() % COLOURS.len()]
    }
}

/// Returns the tool that a series measures: a peer, trawl, or the text before the first comma.
pub fn tool(series: &str) -> &str {
    match Peers::of_series(series) {
        Some(peer) => peer,
        None if series.starts_with("trawl") => "trawl",
        None => series.split(',').next().unwrap_or(series),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_one_tool_have_one_colour() {
        let palette = Palette(["trawl", "tcpdump", "xdpcap"].map(str::to_owned).to_vec());
        assert_eq!(palette.colour("trawl hook, drop"), palette.colour("trawl tc"));
        assert_eq!(palette.colour("xdpcap, drop"), palette.colour("xdpcap, drop, as published"));
        assert_ne!(palette.colour("tcpdump"), palette.colour("xdpcap, drop"));
    }
}
