//! Template files: a mix of frames with weights, and phases over time.
//!
//! ```toml
//! seed = 7
//!
//! [[frame]]
//! kind = "udp"
//! weight = 7
//! dst-port = 53
//! size = "64-200"
//!
//! [[frame]]
//! kind = "tcp"
//! flags = "syn"
//! src = "random:10.0.0.0/8"
//!
//! [[phase]]
//! duration = "10s"
//! rate = "1kpps"
//! to = "100kpps"
//! ```
//!
//! The fields of a frame are the ones of the command line ([`crate::traffic::KEYS`]). Errors are shown with their line
//! and column.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use trawl_sys::{Error, Result, files::text_file};

use crate::pace::{Phase, Profile};
use crate::pattern::Pattern;
use crate::traffic::{self, Limits, Misfit, Protocol, Spec};
use trawl_sys::units;

/// Maximum number of `[[frame]]` entries. Each is handled on its own, and its fields may vary over many frames.
const MOST_FRAMES: usize = 1000;

/// A template file.
#[derive(Clone, Debug)]
pub struct Template {
    file: File,
    parts: Vec<Part>,
    profile: Option<Profile>,
    seed: Option<u64>,
}

/// One `[[frame]]`.
#[derive(Clone, Debug)]
struct Part {
    spec: Spec,
    weight: usize,
    whole: Range<usize>,
    values: Vec<(String, Range<usize>)>,
}

/// The text and its name, to show the position of an error.
#[derive(Clone, Debug)]
struct File {
    name: String,
    text: String,
}

impl File {
    fn error(&self, span: &Range<usize>, why: impl Into<String>) -> Error {
        let before = self.text.get(..span.start).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        Error::usage(format!("{}:{line}:{column}", self.name), why.into())
    }
}

type KeyValue<'a> = (&'a str, Range<usize>, &'a Spanned<DeValue<'a>>);

fn entries<'a>(table: &'a DeTable<'a>) -> impl Iterator<Item = KeyValue<'a>> {
    table.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span(), value))
}

/// Returns a simple value in the form of the command line.
fn text_of(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            let digits = number.as_str();
            i128::from_str_radix(digits, number.radix()).ok().map(|n| n.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Array(all) => {
            let each: Option<Vec<String>> = all.iter().map(|one| text_of(one.get_ref())).collect();
            each.map(|each| each.join(","))
        }
        _ => None,
    }
}

impl Template {
    pub fn read(path: &std::path::Path) -> Result<Self> {
        let name = path.display().to_string();
        Self::parse(name, text_file::read(path)?)
    }

    pub fn parse(name: String, text: String) -> Result<Self> {
        let file = File { name, text };
        let mut template = Self { file: file.clone(), parts: Vec::new(), profile: None, seed: None };
        let document = DeTable::parse(&file.text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            file.error(&span, error.message())
        })?;
        let mut phases = Phases::default();
        for (key, span, value) in entries(document.get_ref()) {
            match key {
                "frame" => {
                    let tables = file.tables(key, value)?;
                    if let Some((_, span)) = tables.get(MOST_FRAMES) {
                        let why = format!("{} [[frame]] exceed the maximum of {MOST_FRAMES}", tables.len());
                        return Err(file.error(span, why));
                    }
                    for (table, span) in tables {
                        template.parts.push(file.part(table, span)?);
                    }
                }
                "phase" => {
                    for (table, span) in file.tables(key, value)? {
                        phases.add(&file, table, span)?;
                    }
                }
                "seed" => template.seed = Some(file.number(value)?),
                "repeat" => phases.repeat = Some(file.number(value)?),
                "wire" => match value.get_ref() {
                    DeValue::Boolean(wire) => phases.wire = *wire,
                    _ => return Err(file.error(&value.span(), "expected true or false")),
                },
                other => {
                    let why = format!("{other}: no such field; known are seed, repeat, wire, [[frame]] and [[phase]]");
                    return Err(file.error(&span, why));
                }
            }
        }
        if template.parts.is_empty() {
            return Err(file.error(&(0..0), "the file has no [[frame]]"));
        }
        template.profile = phases.profile().map_err(|why| file.error(&(0..0), why.to_string()))?;
        Ok(template)
    }

    pub fn specs(&mut self) -> impl Iterator<Item = &mut Spec> {
        self.parts.iter_mut().map(|part| &mut part.spec)
    }

    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Returns the pattern of the frames, after the defaults were filled in.
    pub fn pattern(&self, limits: &Limits) -> Result<Pattern> {
        let mix: Vec<(Spec, usize)> = self.parts.iter().map(|part| (part.spec.clone(), part.weight)).collect();
        traffic::pattern(&mix, limits).map_err(|(at, misfit)| self.misfit(at, &misfit))
    }

    /// Returns the error about a field of one of the frames.
    pub fn misfit(&self, at: usize, misfit: &Misfit) -> Error {
        let part = &self.parts[at.min(self.parts.len() - 1)];
        let found = part.values.iter().find(|(key, _)| *key == misfit.key);
        let span = found.map_or(&part.whole, |(_, span)| span);
        self.file.error(span, format!("{}: {}", misfit.key, misfit.why))
    }
}

impl File {
    /// Returns the tables under `[[key]]`.
    fn tables<'a>(&self, key: &str, value: &'a Spanned<DeValue<'a>>) -> Result<Vec<(&'a DeTable<'a>, Range<usize>)>> {
        let wrong = |span: &Range<usize>| self.error(span, format!("{key}: write [[{key}]]"));
        let all = value.get_ref().as_array().ok_or_else(|| wrong(&value.span()))?;
        let each = all.iter().map(|one| match one.get_ref() {
            DeValue::Table(table) => Ok((table, one.span())),
            _ => Err(wrong(&one.span())),
        });
        each.collect()
    }

    fn text(&self, value: &Spanned<DeValue<'_>>) -> Result<String> {
        text_of(value.get_ref())
            .ok_or_else(|| self.error(&value.span(), "expected a text, a number or a list of these"))
    }

    fn number<T: TryFrom<u64>>(&self, value: &Spanned<DeValue<'_>>) -> Result<T> {
        let number = self.text(value)?.parse::<u64>().ok();
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| self.error(&value.span(), "expected a whole number, neither negative nor too large"))
    }

    fn part(&self, table: &DeTable<'_>, whole: Range<usize>) -> Result<Part> {
        let kind = entries(table).find(|(key, ..)| *key == "kind");
        let names: Vec<&str> = Protocol::ALL.iter().map(|one| one.name()).collect();
        let names = names.join(", ");
        let Some((_, _, kind)) = kind else {
            return Err(self.error(&whole, format!("kind is missing; known are {names}")));
        };
        let protocol = Protocol::parse(&self.text(kind)?)
            .ok_or_else(|| self.error(&kind.span(), format!("kind: known are {names}")))?;
        let mut part = Part { spec: Spec::new(protocol), weight: 1, whole, values: Vec::new() };
        for (key, span, value) in entries(table) {
            match key {
                "kind" => {}
                "weight" => {
                    part.weight = self.number::<u16>(value)?.into();
                    if part.weight == 0 {
                        return Err(self.error(&value.span(), "weight: a frame with weight 0 would never be sent"));
                    }
                }
                key => {
                    let text = self.text(value)?;
                    let set = part.spec.set(key, text);
                    set.map_err(|misfit| self.error(&span, format!("{}: {}", misfit.key, misfit.why)))?;
                    part.values.push((key.to_owned(), value.span()));
                }
            }
        }
        Ok(part)
    }
}

/// The phases of a file while it is read.
#[derive(Default)]
struct Phases {
    phases: Vec<Phase>,
    /// True if rates are bits: the first phase with a rate decides.
    bits: Option<bool>,
    repeat: Option<u32>,
    wire: bool,
}

impl Phases {
    fn add(&mut self, file: &File, table: &DeTable<'_>, whole: Range<usize>) -> Result<()> {
        let mut duration: Option<Duration> = None;
        let (mut from, mut to) = (None, None);
        let (mut steps, mut burst) = (0u32, 0u64);
        let bits = entries(table).any(|(key, ..)| key == "bandwidth");
        for (key, span, value) in entries(table) {
            let wrong = |why: String| file.error(&value.span(), format!("{key}: {why}"));
            let rate = || {
                let text = file.text(value)?;
                let parsed = if text.trim() == "0" {
                    Ok(0.0)
                } else if bits {
                    units::bandwidth(&text)
                } else {
                    units::frame_rate(&text)
                };
                parsed.map_err(wrong)
            };
            match key {
                "duration" => duration = Some(units::duration(&file.text(value)?).map_err(wrong)?),
                "rate" | "bandwidth" => from = Some(rate()?),
                "to" => to = Some(rate()?),
                "steps" => steps = file.number(value)?,
                "burst" => burst = file.number(value)?,
                "pause" => {
                    from = Some(0.0);
                    duration = Some(units::duration(&file.text(value)?).map_err(wrong)?);
                }
                other => {
                    let why = format!(
                        "{other}: no such field; known are duration, rate, bandwidth, to, steps, burst and pause"
                    );
                    return Err(file.error(&span, why));
                }
            }
        }
        let missing = |what: &str| file.error(&whole, format!("{what}: it is missing"));
        let seconds = duration.ok_or_else(|| missing("duration"))?.as_secs_f64();
        let from = from.ok_or_else(|| missing("rate"))?;
        if from > 0.0 {
            if self.bits.is_some_and(|before| before != bits) {
                let why = "an earlier phase uses the other unit: use rate or bandwidth in all phases";
                return Err(file.error(&whole, why));
            }
            self.bits = Some(bits);
        }
        self.phases.push(Phase { seconds, from, to: to.unwrap_or(from), steps, burst });
        Ok(())
    }

    fn profile(self) -> Result<Option<Profile>> {
        if self.phases.is_empty() {
            return Ok(None);
        }
        let overhead = if self.wire { crate::pace::WIRE_OVERHEAD } else { 0 };
        let overhead = self.bits.unwrap_or(false).then_some(overhead);
        Profile::new(&self.phases, self.repeat.unwrap_or(1), overhead).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
seed = 3
repeat = 2

[[frame]]
kind = "udp"
weight = 3
src = "10.0.0.1"
dst = "10.0.0.2"
src-mac = "02:00:00:00:00:01"
dst-mac = "02:00:00:00:00:02"
dst-port = [53, 123]
size = 64

[[frame]]
kind = "eth"
src-mac = "02:00:00:00:00:01"
dst-mac = "02:00:00:00:00:02"
ethertype = 0x88b5

[[phase]]
duration = "1s"
rate = "1kpps"
to = 2000

[[phase]]
pause = "500ms"
"#;

    fn limits() -> Limits {
        Limits { mtu: Some(1500), seed: 1, stamp: None }
    }

    #[test]
    fn excessive_number_of_frames_is_refused() {
        let many = |count| {
            let text = "[[frame]]\nkind = \"udp\"\n".repeat(count);
            Template::parse("x.toml".to_owned(), text)
        };
        assert!(many(MOST_FRAMES).is_ok());
        let error = many(20_000).unwrap_err().to_string();
        assert!(error.contains("20000 [[frame]]"), "{error}");
        assert!(error.starts_with("x.toml:2001:1"), "{error}");
        assert!(Template::read(std::path::Path::new("/dev/zero")).is_err());
    }

    #[test]
    fn a_mix_and_its_phases() {
        let template = Template::parse("x.toml".to_owned(), GOOD.to_owned()).unwrap();
        let pattern = template.pattern(&limits()).unwrap();
        let types: Vec<[u8; 2]> = (0..8).map(|n| [pattern.frame(n)[12], pattern.frame(n)[13]]).collect();
        assert_eq!(types.iter().filter(|t| **t == [0x08, 0x00]).count(), 6);
        assert_eq!(types.iter().filter(|t| **t == [0x88, 0xb5]).count(), 2);
        let profile = template.profile().unwrap();
        assert_eq!((profile.seconds(), profile.total()), (3.0, 3000.0));
        assert_eq!(template.seed(), Some(3));
    }

    #[test]
    fn mistakes_are_shown_at_their_position() {
        for (text, position, words) in [
            ("[[frame]]\nkind = \"udp\"\ndst-prot = 5\n", "x.toml:3:1", "dst-port?"),
            ("[[frame]]\nkind = \"usb\"\n", "x.toml:2:8", "udp"),
            ("[[frame]]\nsize = 5\n", "x.toml:1:1", "kind"),
            ("[[frame]]\nkind = \"arp\"\ndst-port = 5\n", "x.toml:3:1", "do not have"),
            ("frames = 1\n", "x.toml:1:1", "[[frame]]"),
            ("[[frame]]\nkind = \"udp\n", "x.toml:2:", ""),
            ("", "x.toml:1:1", "no [[frame]]"),
            ("[[frame]]\nkind = \"udp\"\n[[phase]]\nduration = \"1s\"\nrate = \"-5\"\n", "x.toml:5:8", "rate"),
            ("[[frame]]\nkind = \"udp\"\n[[phase]]\nrate = 5\n", "x.toml:3:1", "duration"),
            ("[[frame]]\nkind = \"udp\"\nweight = 0\n", "x.toml:3:10", "never"),
        ] {
            let error = Template::parse("x.toml".to_owned(), text.to_owned()).unwrap_err().to_string();
            assert!(error.starts_with(position) && error.contains(words), "{text}: {error}");
        }
        let late = GOOD.replace("size = 64", "size = 30");
        let template = Template::parse("x.toml".to_owned(), late).unwrap();
        let error = template.pattern(&limits()).unwrap_err().to_string();
        assert!(error.starts_with("x.toml:13:8: size"), "{error}");
    }
}
