//! The look as text, and the screen that it is shown on.

use std::fmt::Write as _;

use trawl_kernel::Result;
use trawl_view::stat::{bits, plot};

use super::Look;
use crate::terminal;

/// What interfaces and flows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
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

const HISTORY_WIDTH: usize = 60;

pub(super) fn text(look: &Look, history: &[u64], order: Order) -> String {
    let mut out = String::new();
    let mut interfaces = look.interfaces.clone();
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
    if !look.xdp_programs.is_empty() {
        let _ = writeln!(
            out,
            "\nXDP program          interface                runs/s    ns/run     CPU"
        );
        for program in &look.xdp_programs {
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
        if !captured.flows.is_empty() {
            let _ = writeln!(out, "\n    packets         bytes  flow");
        }
        for flow in &captured.flows {
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

const HELP: &str = "keys\n  s  sort interfaces by rate, drops or name\n  p  pause, and go on\n  h  show or hide this help\n  q  end\n";

/// The alternate screen of the terminal, left when this is dropped.
pub(super) struct Screen {
    order: Order,
    paused: bool,
    help: bool,
    last: Option<(Look, Vec<u64>)>,
}

impl Screen {
    pub fn open() -> Result<Self> {
        terminal::write_control("\x1b[?1049h\x1b[?25l")?;
        Ok(Self {
            order: Order::Rate,
            paused: false,
            help: false,
            last: None,
        })
    }

    /// Takes a key; true if it ends the view.
    pub fn take(&mut self, key: u8) -> bool {
        match key {
            b'q' | 3 => return true,
            b's' => self.order = self.order.next(),
            b'p' | b' ' => self.paused = !self.paused,
            b'h' | b'?' => self.help = !self.help,
            _ => return false,
        }
        // A terminal that is gone ends the view at the next look.
        let _ = self.draw();
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

    fn draw(&self) -> Result<bool> {
        let body = match (&self.last, self.help) {
            (_, true) => HELP.to_owned(),
            (Some((look, history)), false) => text(look, history, self.order),
            (None, false) => String::new(),
        };
        let state = if self.paused { "paused" } else { "live" };
        let head = format!(
            "trawl top  {state}  sorted by {}  (s sort, p pause, h help, q end)\n",
            self.order.word()
        );
        let lines = terminal::printable(&format!("{head}{body}")).replace('\n', "\x1b[K\r\n");
        terminal::write_to_reader(&format!("\x1b[H{lines}\x1b[J"))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = terminal::write_control("\x1b[?25h\x1b[?1049l");
    }
}
