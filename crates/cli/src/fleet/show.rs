//! A fleet for people: a row for each capture of each host.

use serde::Serialize;
use trawl_agent::desired::Labels;
use trawl_agent::{CaptureReport, HostReport, Phase};

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fleet {
    pub hosts: Vec<Host>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Host {
    pub host: String,
    pub labels: Labels,
    /// Of what is desired; 0 if nothing ever was.
    pub revision: u64,
    /// Whether the host's last state is about this revision.
    pub follows: bool,
    /// Why what is desired cannot be read.
    pub error: Option<String>,
    /// What the host said last; nothing if it never did.
    pub state: Option<HostReport>,
}

/// Characters of a column.
const WIDEST: usize = 64;

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Running => "running",
        Phase::Stopping => "stopping",
        Phase::Waiting => "waiting",
        Phase::Finished => "finished",
        Phase::Refused => "refused",
    }
}

fn remark(capture: &CaptureReport) -> String {
    match (&capture.refused, &capture.error) {
        (Some(refusal), _) => super::refusal(refusal),
        (None, Some(error)) => error.clone(),
        (None, None) => capture.capture.filter.clone(),
    }
}

fn state_of(host: &Host) -> String {
    match (&host.state, &host.error) {
        (_, Some(error)) => error.clone(),
        (None, None) => "no agent has reported".to_owned(),
        (Some(state), None) => match (&state.error, host.follows) {
            (Some(error), _) => error.clone(),
            _ if state.stopping => "the agent has ended".to_owned(),
            (None, false) => format!("follows {} of {}", state.revision, host.revision),
            (None, true) => String::new(),
        },
    }
}

pub(super) fn table(fleet: &Fleet) -> String {
    let header = ["HOST", "CAPTURE", "STATE", "SEEN", "RECORDED", "LOST"];
    let mut rows: Vec<(Vec<String>, String)> = Vec::new();
    for host in &fleet.hosts {
        let captures = host.state.iter().flat_map(|state| &state.captures);
        let before = rows.len();
        for capture in captures {
            let account = &capture.account;
            let lost = account
                .lost
                .values()
                .fold(0u64, |sum, one| sum.saturating_add(*one));
            let cells = vec![
                host.host.clone(),
                capture.capture.name.clone(),
                phase(capture.phase).to_owned(),
                account.seen.to_string(),
                account.recorded.to_string(),
                lost.to_string(),
            ];
            rows.push((cells, remark(capture)));
        }
        let said = state_of(host);
        if rows.len() == before || !said.is_empty() {
            let mut cells = vec![host.host.clone()];
            cells.resize(header.len(), "-".to_owned());
            rows.push((cells, said));
        }
    }
    // Another host may report anything.
    for (cells, _) in &mut rows {
        for cell in cells
            .iter_mut()
            .filter(|cell| cell.chars().count() > WIDEST)
        {
            *cell = cell.chars().take(WIDEST - 3).collect::<String>() + "...";
        }
    }
    let width = |column: usize| {
        let cells = rows.iter().map(|(cells, _)| cells[column].chars().count());
        cells.max().unwrap_or(0).max(header[column].len())
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[String], remark: &str| {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            // Numbers end at the same place.
            match column < 3 {
                true => line += &format!("{cell:<width$}  "),
                false => line += &format!("{cell:>width$}  "),
            }
        }
        line += remark;
        line.trim_end().to_owned() + "\n"
    };
    let mut text = line(&header.map(str::to_owned), "");
    for (cells, remark) in &rows {
        text += &line(cells, remark);
    }
    text
}
