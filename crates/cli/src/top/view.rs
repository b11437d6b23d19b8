//! The look as text, and the screen that it is shown on.

use std::fmt::Write as _;

use trawl_kernel::Result;
use trawl_view::stat::{bits, plot};

use super::{Look, redirects};
use crate::terminal;

/// What interfaces and flows are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Rate,
    Drops,
    Name,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Rate => Self::Drops,
            Self::Drops => Self::Name,
            Self::Name => Self::Rate,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Drops => "drops",
            Self::Name => "name",
        }
    }
}

/// What is on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Page {
    #[default]
    Overview,
    Redirects,
}

/// What is shown of a look, and how.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    pub page: Page,
    pub order: Order,
    /// Only lines that contain this.
    pub filter: String,
}

const HISTORY_WIDTH: usize = 60;

pub(super) fn text(look: &Look, history: &[u64], shown: &Shown) -> String {
    match (shown.page, &look.redirects) {
        (Page::Overview, _) => overview(look, history, shown),
        (Page::Redirects, Some(rows)) => redirects::text(rows, &shown.filter),
        (Page::Redirects, None) => {
            "the XDP tracepoints cannot be watched: run as root\n".to_owned()
        }
    }
}

fn overview(look: &Look, history: &[u64], shown: &Shown) -> String {
    let mut out = String::new();
    let order = shown.order;
    let wanted = |name: &str| name.contains(&shown.filter);
    let mut interfaces = look.interfaces.clone();
    interfaces.retain(|rates| wanted(&rates.interface));
    interfaces.sort_by(|a, b| match order {
        Order::Rate => b.rx_packets_per_second.total_cmp(&a.rx_packets_per_second),
        Order::Drops => (b.rx_dropped + b.tx_dropped).cmp(&(a.rx_dropped + a.tx_dropped)),
        Order::Name => a.interface.cmp(&b.interface),
    });
    let _ = writeln!(out, "received packets/s  {}", plot(history, HISTORY_WIDTH));
    let _ = writeln!(
        out,
        "\ninterface            in packets/s            in   dropped   out packets/s           out   dropped"
    );
    for rates in &interfaces {
        let _ = writeln!(
            out,
            "{:<20}{:>13.0}{:>14}{:>10}{:>16.0}{:>14}{:>10}",
            rates.interface,
            rates.rx_packets_per_second,
            bits(rates.rx_bits_per_second),
            rates.rx_dropped + rates.rx_errors,
            rates.tx_packets_per_second,
            bits(rates.tx_bits_per_second),
            rates.tx_dropped + rates.tx_errors
        );
    }
    let softnet = look.softnet;
    let _ = writeln!(
        out,
        "\nsoftnet: {} processed, {} dropped, {} times out of budget",
        softnet.processed, softnet.dropped, softnet.time_squeezed
    );
    let _ = writeln!(out, "dropped: {}", drops(look));
    if !look.xdp_programs.is_empty() {
        let _ = writeln!(
            out,
            "\nXDP program          interface                runs/s    ns/run     CPU"
        );
        let programs = look.xdp_programs.iter();
        for program in programs.filter(|one| wanted(&one.name) || wanted(&one.interface)) {
            let _ = writeln!(
                out,
                "{:<21}{:<18}{:>13.0}{:>10.1}{:>6.1} %",
                program.name,
                program.interface,
                program.runs_per_second,
                program.nanoseconds_per_run,
                program.cpu_percent
            );
        }
    }
    for rule in &look.guard_rules {
        let _ = writeln!(
            out,
            "guard rule {}: {} packets  {}",
            rule.id, rule.packets, rule.rule
        );
    }
    if let Some(captured) = &look.captured {
        let _ = writeln!(
            out,
            "\ncaptured {} packets, lost {}",
            captured.packets, captured.lost
        );
        for verdict in &captured.verdicts {
            let name = verdict.verdict.as_deref().unwrap_or_default();
            let hook = verdict.hook.as_deref().unwrap_or_default();
            let share = verdict.packets as f64 * 100.0 / captured.packets.max(1) as f64;
            let _ = writeln!(
                out,
                "  {hook} {name:<10}{:>11}{share:>7.1} %",
                verdict.packets
            );
        }
        let protocols = captured.protocols.iter().take(8);
        let protocols = protocols.map(|one| format!("{} {}", one.name, one.packets));
        let _ = writeln!(
            out,
            "  protocols: {}",
            protocols.collect::<Vec<_>>().join(", ")
        );
        if !captured.flows.is_empty() {
            let _ = writeln!(out, "\n    packets         bytes  flow");
        }
        for flow in captured.flows.iter().filter(|flow| wanted(&flow.words())) {
            let _ = writeln!(
                out,
                "{:>11}{:>14}  {}",
                flow.packets,
                flow.bytes,
                flow.words()
            );
        }
    }
    out
}

/// Packets that were dropped in the interval, by where.
fn drops(look: &Look) -> String {
    let device = |rates: &super::Rates| {
        rates.rx_dropped + rates.rx_errors + rates.tx_dropped + rates.tx_errors
    };
    let mut places = vec![
        (
            "device".to_owned(),
            look.interfaces.iter().map(device).sum(),
        ),
        ("softnet".to_owned(), look.softnet.dropped),
    ];
    let events = look.redirects.iter().flatten();
    places.push((
        "redirect errors and exceptions".to_owned(),
        events
            .filter(|row| row.event.is_loss())
            .map(|row| row.rates.drops)
            .sum(),
    ));
    if let Some(captured) = &look.captured {
        for verdict in &captured.verdicts {
            let name = verdict.verdict.as_deref().unwrap_or_default();
            if name == "DROP" || name == "ABORTED" {
                places.push((format!("XDP {name}"), verdict.packets));
            }
        }
        places.push(("ring of the capture".to_owned(), captured.lost));
    }
    let words = places
        .iter()
        .map(|(place, packets)| format!("{place} {packets}"));
    words.collect::<Vec<_>>().join(", ")
}

const HELP: &str = "keys\n  s  sort interfaces by rate, drops or name\n  x  show redirects, exceptions, devmaps and cpumaps, or all again\n  /  show only lines that contain what is typed; Enter ends it, Escape shows all\n  p  pause, and go on\n  j  scroll down, as the arrow does\n  k  scroll up, as the arrow does\n  g  to the top\n  h  show or hide this help\n  q  end\n";

const ESCAPE: u8 = 0x1b;
/// What [`Sequence`] gives for the arrows: bytes that no key of a terminal sends alone.
const UP: u8 = 0xf0;
const DOWN: u8 = 0xf1;

/// The bytes of one key: arrows and their like come as Escape and two or more bytes.
#[derive(Debug, Default)]
enum Sequence {
    #[default]
    None,
    Escape,
    Parameters,
}

impl Sequence {
    /// A key, once its last byte has come.
    fn take(&mut self, byte: u8) -> Option<u8> {
        match (&self, byte) {
            (_, ESCAPE) => *self = Self::Escape,
            (Self::Escape, b'[' | b'O') => *self = Self::Parameters,
            (Self::Parameters, b'@'..=b'~') => {
                *self = Self::None;
                return match byte {
                    b'A' => Some(UP),
                    b'B' => Some(DOWN),
                    _ => None,
                };
            }
            (Self::Parameters, _) => {}
            (Self::None | Self::Escape, _) => {
                *self = Self::None;
                return Some(byte);
            }
        }
        None
    }

    /// Nothing more is typed: Escape alone is the key of that name.
    fn end(&mut self) -> Option<u8> {
        match std::mem::take(self) {
            Self::Escape => Some(ESCAPE),
            _ => None,
        }
    }
}

/// The alternate screen of the terminal, left when this is dropped.
pub(super) struct Screen {
    shown: Shown,
    paused: bool,
    help: bool,
    /// The filter is being typed.
    typing: bool,
    /// Lines of the page above the screen.
    above: usize,
    sequence: Sequence,
    last: Option<(Look, Vec<u64>)>,
}

impl Screen {
    pub fn open(page: Page) -> Result<Self> {
        terminal::write_control("\x1b[?1049h\x1b[?25l")?;
        Ok(Self {
            shown: Shown {
                page,
                ..Shown::default()
            },
            paused: false,
            help: false,
            typing: false,
            above: 0,
            sequence: Sequence::default(),
            last: None,
        })
    }

    /// Takes the keys that were typed; true if one of them ends the view.
    pub fn take(&mut self, typed: impl Iterator<Item = u8>) -> bool {
        let mut any = false;
        for byte in typed {
            any = true;
            if let Some(key) = self.sequence.take(byte)
                && self.act(key)
            {
                return true;
            }
        }
        if let Some(key) = self.sequence.end() {
            self.act(key);
        }
        if any {
            // A terminal that is gone ends the view at the next look.
            let _ = self.draw();
        }
        false
    }

    /// Does what a key asks for; true if it ends the view.
    fn act(&mut self, key: u8) -> bool {
        const BACKSPACE: u8 = 0x7f;
        let filter = &mut self.shown.filter;
        match key {
            3 => return true,
            ESCAPE => {
                self.typing = false;
                filter.clear();
            }
            b'\r' | b'\n' => self.typing = false,
            BACKSPACE | 8 if self.typing => drop(filter.pop()),
            b' '..=b'~' if self.typing => filter.push(char::from(key)),
            DOWN | b'j' => self.above += 1,
            UP | b'k' => self.above = self.above.saturating_sub(1),
            b'g' => self.above = 0,
            b'q' => return true,
            b's' => self.shown.order = self.shown.order.next(),
            b'x' => {
                self.above = 0;
                self.shown.page = match self.shown.page {
                    Page::Overview => Page::Redirects,
                    Page::Redirects => Page::Overview,
                }
            }
            b'/' | b'f' => self.typing = true,
            b'p' | b' ' => self.paused = !self.paused,
            b'h' | b'?' => self.help = !self.help,
            _ => {}
        }
        false
    }

    /// Shows a look, unless the view is paused; false if the terminal is gone.
    pub fn show(&mut self, look: Look, history: &[u64]) -> Result<bool> {
        if self.paused {
            return Ok(true);
        }
        self.last = Some((look, history.to_vec()));
        self.draw()
    }

    fn draw(&mut self) -> Result<bool> {
        let body = match (&self.last, self.help) {
            (_, true) => HELP.to_owned(),
            (Some((look, history)), false) => text(look, history, &self.shown),
            (None, false) => String::new(),
        };
        let state = if self.paused { "paused" } else { "live" };
        let filter = match (self.typing, self.shown.filter.as_str()) {
            (true, filter) => format!("  filter: {filter}_"),
            (false, "") => String::new(),
            (false, filter) => format!("  filter: {filter}"),
        };
        let (columns, rows) = terminal::window();
        let body = terminal::printable(&body);
        let mut lines: Vec<&str> = body.lines().collect();
        let room = rows.saturating_sub(1);
        self.above = self.above.min(lines.len().saturating_sub(room));
        lines.drain(..self.above);
        let below = lines.len().saturating_sub(room);
        lines.truncate(room);
        let hidden = match (self.above, below) {
            (0, 0) => String::new(),
            (above, below) => format!("  {above} lines above, {below} below"),
        };
        let head = format!(
            "trawl top  {state}  sorted by {}{filter}{hidden}  (s sort, x redirects, / filter, p pause, j k scroll, h help, q end)",
            self.shown.order.word()
        );
        lines.insert(0, &head);
        // What is longer than the terminal is wide would push the lines below it off the screen.
        let lines: Vec<String> = lines
            .iter()
            .map(|line| line.chars().take(columns).collect())
            .collect();
        terminal::write_to_reader(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = terminal::write_control("\x1b[?25h\x1b[?1049l");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_are_keys_and_escape_is_one() {
        let keys = |typed: &[u8]| {
            let mut sequence = Sequence::default();
            let mut keys: Vec<u8> = typed
                .iter()
                .filter_map(|&byte| sequence.take(byte))
                .collect();
            keys.extend(sequence.end());
            keys
        };
        assert_eq!(keys(b"s\x1b[A\x1bOB\x1b[5~p"), [b's', UP, DOWN, b'p']);
        assert_eq!(keys(b"q\x1b"), [b'q', ESCAPE]);
        assert!(keys(b"\x1b[").is_empty());
    }
}
