//! A frame as text, and the screen that shows it.

use std::fmt::Write as _;

use trawl_sys::Result;
use trawl_view::stat::plot;
use trawl_view::text::cut;
use trawl_view::{columns, table};

use super::{Captured, Frame, Order, ProgramRates, Rates, redirects};
use crate::terminal;
use trawl_figures::redirects::Event;

/// The page on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Page {
    #[default]
    Overview,
    Redirects,
    Processes,
}

/// The page of a frame, and its options.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    pub page: Page,
    pub order: Order,
    /// Only lines that contain this text are shown.
    pub filter: String,
}

const HISTORY_WIDTH: usize = 60;
/// Width of a usual terminal, in which the verdict about a connection fits.
const WIDTH: usize = 80;

pub(super) fn text(frame: &Frame, history: &[u64], shown: &Shown) -> String {
    match (shown.page, &frame.redirects, &frame.traffic) {
        (Page::Overview, ..) => overview(frame, history, shown),
        (Page::Redirects, Some(rows), _) => redirects::text(rows, &shown.filter),
        (Page::Redirects, None, _) => "the XDP tracepoints cannot be watched: run as root\n".to_owned(),
        (Page::Processes, _, Some(rates)) => rates.text(&shown.filter),
        (Page::Processes, _, None) => match &frame.no_traffic {
            Some(error) => format!("{error}\n"),
            None => "counting begins\n".to_owned(),
        },
    }
}

fn overview(frame: &Frame, history: &[u64], shown: &Shown) -> String {
    let mut out = String::new();
    let wanted = |name: &str| name.contains(&shown.filter);
    let _ = writeln!(out, "received packets/s  {}", plot(history, HISTORY_WIDTH));
    let interfaces = frame.interfaces.iter().filter(|one| wanted(&one.interface));
    let _ = write!(out, "\n{}", table::text(Rates::COLUMNS, interfaces));
    let softnet = frame.softnet;
    let _ = writeln!(
        out,
        "\nsoftnet: {} processed, {} dropped, {} times out of budget",
        softnet.processed, softnet.dropped, softnet.time_squeezed
    );
    let _ = writeln!(out, "dropped: {}", drops(frame));
    if let Some(worst) = &frame.worst_connection {
        let _ = writeln!(out, "{}", cut(&format!("slow: {}", worst.line.brief()), WIDTH));
    }
    if !frame.xdp_programs.is_empty() {
        let programs = frame.xdp_programs.iter().filter(|one| wanted(&one.name) || wanted(&one.interface));
        let _ = write!(out, "\n{}", table::text(ProgramRates::COLUMNS, programs));
    }
    for rule in frame.guard_rules.iter().filter(|one| wanted(&one.rule)) {
        let _ = writeln!(out, "guard rule {}: {} packets  {}", rule.id, rule.packets, rule.rule);
    }
    if let Some(captured) = &frame.captured {
        captured_text(&mut out, captured, &wanted);
    }
    out
}

/// Number of protocols that are shown.
const PROTOCOLS: usize = 8;

fn captured_text(out: &mut String, captured: &Captured, wanted: &dyn Fn(&str) -> bool) {
    let _ = writeln!(out, "\ncaptured {} packets, lost {}", captured.packets, captured.lost);
    for verdict in &captured.verdicts {
        let name = verdict.verdict.as_deref().unwrap_or_default();
        let hook = verdict.hook.as_deref().unwrap_or_default();
        let share = verdict.packets as f64 * 100.0 / captured.packets.max(1) as f64;
        let _ = writeln!(out, "  {hook} {name:<10}{:>11}{share:>7.1} %", verdict.packets);
    }
    let protocols = captured.protocols.iter().filter(|one| wanted(&one.name)).take(PROTOCOLS);
    let protocols = protocols.map(|one| (one.packets, one.bytes, one.name.clone()));
    let flows = captured.flows.iter().map(|flow| (flow.packets, flow.bytes, flow.label()));
    for (title, rows) in [("protocol", protocols.collect()), ("flow", flows.filter(|one| wanted(&one.2)).collect())] {
        let rows: Vec<(u64, u64, String)> = rows;
        let columns = columns![row: (u64, u64, String); "packets" 11 row.0, "bytes" 13 row.1, title -1 row.2];
        if !rows.is_empty() {
            let _ = write!(out, "\n{}", table::text(&columns, rows.iter()));
        }
    }
}

/// Formats the drops in the interval, by their location.
fn drops(frame: &Frame) -> String {
    let device = |rates: &Rates| rates.rx_dropped + rates.rx_errors + rates.tx_dropped + rates.tx_errors;
    let at = |wanted: &[Event]| -> u64 {
        let events = frame.redirects.iter().flatten();
        let there = events.filter(|row| wanted.contains(&row.event));
        there.map(|row| row.rates.drops).sum()
    };
    let mut parts = vec![
        format!("device {}", frame.interfaces.iter().map(device).sum::<u64>()),
        format!("softnet {}", frame.softnet.dropped),
        format!("redirect {}", at(&[Event::RedirectError, Event::Exception])),
    ];
    for (name, packets) in
        [("devmap", at(&[Event::Devmap])), ("cpumap", at(&[Event::CpumapEnqueue, Event::CpumapKthread]))]
    {
        parts.extend((packets > 0).then(|| format!("{name} {packets}")));
    }
    if let Some(captured) = &frame.captured {
        let verdicts = captured.verdicts.iter();
        parts.extend(verdicts.filter_map(|verdict| {
            let name = verdict.verdict.as_deref()?;
            matches!(name, "DROP" | "ABORTED").then(|| format!("XDP {name} {}", verdict.packets))
        }));
        parts.push(format!("ring {}", captured.lost));
    }
    parts.join(", ")
}

const HELP: &str = "keys
  s  sort all tables by rate, bits, drops or name
  r  reverse the order
  x  redirects, exceptions, devmaps and cpumaps, or all again
  w  the packets of processes and containers at their sockets, or all again
  /  show only lines that contain what is typed
     Enter ends typing, Escape shows all lines
  p  pause, or continue
  j  scroll down; k up; g to the top (or the arrows)
  <  scroll left; > right (or the arrows)
  h  show or hide this help
  q  end
";

/// Columns that one key scrolls by.
const SIDEWAYS: usize = 8;
const ESCAPE: u8 = 0x1b;
/// Codes that [`Sequence`] returns for the arrows: bytes that no key of a terminal sends alone.
const UP: u8 = 0xf0;
const DOWN: u8 = 0xf1;
const RIGHT: u8 = 0xf2;
const LEFT: u8 = 0xf3;

/// The bytes of one key: arrows and similar keys send Escape and two or more bytes.
#[derive(Debug, Default)]
enum Sequence {
    #[default]
    None,
    Escape,
    Parameters,
}

impl Sequence {
    /// Returns a key, once its last byte has arrived.
    fn push(&mut self, byte: u8) -> Option<u8> {
        match (&self, byte) {
            (_, ESCAPE) => *self = Self::Escape,
            (Self::Escape, b'[' | b'O') => *self = Self::Parameters,
            (Self::Parameters, b'@'..=b'~') => {
                *self = Self::None;
                return match byte {
                    b'A' => Some(UP),
                    b'B' => Some(DOWN),
                    b'C' => Some(RIGHT),
                    b'D' => Some(LEFT),
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

    /// Ends the input: returns Escape if it was typed alone.
    fn end(&mut self) -> Option<u8> {
        match std::mem::take(self) {
            Self::Escape => Some(ESCAPE),
            _ => None,
        }
    }
}

/// The alternate screen of the terminal. Dropping it returns to the normal screen.
pub(super) struct Screen {
    shown: Shown,
    paused: bool,
    help: bool,
    /// Set while the filter is being typed.
    typing: bool,
    /// Lines of the page above the screen.
    above: usize,
    /// Columns of the page left of the screen.
    left: usize,
    sequence: Sequence,
    last: Option<(Frame, Vec<u64>)>,
}

impl Screen {
    pub fn open(shown: Shown) -> Result<Self> {
        terminal::write_control("\x1b[?1049h\x1b[?25l")?;
        Ok(Self {
            shown,
            paused: false,
            help: false,
            typing: false,
            above: 0,
            left: 0,
            sequence: Sequence::default(),
            last: None,
        })
    }

    pub fn order(&self) -> Order {
        self.shown.order
    }

    pub fn page(&self) -> Page {
        self.shown.page
    }

    /// Handles typed keys; returns true if one of them ends the view.
    pub fn handle_keys(&mut self, typed: impl Iterator<Item = u8>) -> bool {
        let mut is_any_typed = false;
        for byte in typed {
            is_any_typed = true;
            if let Some(key) = self.sequence.push(byte)
                && self.act(key)
            {
                return true;
            }
        }
        if let Some(key) = self.sequence.end() {
            self.act(key);
        }
        if is_any_typed {
            // If the terminal is gone, the next frame ends the view.
            let _ = self.draw();
        }
        false
    }

    /// Carries out a key's command; returns true if it ends the view.
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
            b'g' => (self.above, self.left) = (0, 0),
            b'q' => return true,
            b's' => self.sort(self.shown.order.next()),
            b'r' => self.sort(Order { reverse: !self.shown.order.reverse, ..self.shown.order }),
            RIGHT | b'>' => self.left += SIDEWAYS,
            LEFT | b'<' => self.left = self.left.saturating_sub(SIDEWAYS),
            b'x' => self.switch_page(Page::Redirects),
            b'w' => self.switch_page(Page::Processes),
            b'/' | b'f' => self.typing = true,
            b'p' | b' ' => self.paused = !self.paused,
            b'h' | b'?' => {
                (self.above, self.left) = (0, 0);
                self.help = !self.help;
            }
            _ => {}
        }
        false
    }

    /// Shows a page, or the overview if that page is shown already.
    fn switch_page(&mut self, page: Page) {
        (self.above, self.left) = (0, 0);
        self.shown.page = if self.shown.page == page { Page::Overview } else { page };
    }

    /// Sorts the current frame at once.
    fn sort(&mut self, order: Order) {
        self.shown.order = order;
        if let Some((frame, _)) = &mut self.last {
            order.apply(frame);
        }
    }

    /// Shows a frame, unless the view is paused; returns false if the terminal is gone.
    pub fn show(&mut self, frame: Frame, history: &[u64]) -> Result<bool> {
        if self.paused {
            return Ok(true);
        }
        self.last = Some((frame, history.to_vec()));
        self.draw()
    }

    fn draw(&mut self) -> Result<bool> {
        let body = match (&self.last, self.help) {
            (_, true) => HELP.to_owned(),
            (Some((frame, history)), false) => text(frame, history, &self.shown),
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
            (above, below) => {
                let (last, all) = (above + lines.len(), above + lines.len() + below);
                format!("  lines {}-{last} of {all}", above + 1)
            }
        };
        let order = self.shown.order.name();
        let head = format!("trawl top  {state}  sorted by {order}{filter}");
        let keys = "s sort, r reverse, x redirects, w processes, / filter, p pause, arrows scroll, h help, q end";
        let heads = [
            format!("{head}{hidden}  ({keys})"),
            format!("{head}{hidden}  (h help, q end)"),
            format!("{head}  h help"),
        ];
        let fits = heads.iter().find(|head| head.chars().count() <= columns);
        let head = fits.unwrap_or(&head);
        let longest = lines.iter().map(|line| line.chars().count()).max();
        self.left = self.left.min(longest.unwrap_or(0).saturating_sub(columns));
        // A line longer than the terminal's width would push later lines off the screen.
        let cut = |line: &str, left: usize| line.chars().skip(left).take(columns).collect();
        let mut shown: Vec<String> = vec![cut(head, 0)];
        shown.extend(lines.iter().map(|line| cut(line, self.left)));
        terminal::write_to_reader(&format!("\x1b[H{}\x1b[K\x1b[J", shown.join("\x1b[K\r\n")))
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
            let mut keys: Vec<u8> = typed.iter().filter_map(|&byte| sequence.push(byte)).collect();
            keys.extend(sequence.end());
            keys
        };
        assert_eq!(keys(b"s\x1b[A\x1bOB\x1b[5~p"), [b's', UP, DOWN, b'p']);
        assert_eq!(keys(b"\x1b[C\x1b[D"), [RIGHT, LEFT]);
        assert_eq!(keys(b"q\x1b"), [b'q', ESCAPE]);
        assert!(keys(b"\x1b[").is_empty());
    }
}
