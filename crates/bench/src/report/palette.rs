//! The colours of a report: each tool has one colour in all plots, and dashes and marks tell its series apart.

use super::Source;
use crate::peers::Peers;

/// Okabe and Ito's colours, which people with any colour vision tell apart, and more of that kind.
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
            let published = one
                .definition
                .published
                .iter()
                .map(|one| one.series.clone());
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

/// Returns the tool that a series measures: a peer, trawl, or what stands before the first comma.
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
        assert_eq!(
            palette.colour("trawl hook, drop"),
            palette.colour("trawl tc")
        );
        assert_eq!(
            palette.colour("xdpcap, drop"),
            palette.colour("xdpcap, drop, 8 MiB buffer")
        );
        assert_ne!(palette.colour("tcpdump"), palette.colour("xdpcap, drop"));
    }
}
