//! JSON for machines: one document on one line, and errors in the same form. `docs/json.md` describes the documents.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trawl_sys::error::ErrorKind;
pub use trawl_sys::units::{rounded, rounded_option};
use trawl_sys::{Error, Result};
use trawl_view::text;

use crate::terminal::{self, write_out};

/// Writes one document to standard output.
pub fn print(document: &impl Serialize) -> Result<()> {
    write_out(&line(document)?)
}

/// Writes a result to standard output: the document, or text for people, folded to the terminal.
pub fn print_as(as_json: bool, document: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    if as_json { print(document) } else { write_out(&terminal::folded(&text())) }
}

/// Returns one document as a line.
pub fn line(document: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(document);
    text.map(|text| text::in_json(&text).into_owned() + "\n").map_err(|e| Error::failed("cannot write JSON", e))
}

/// Removes keys without a value from an object, recursively.
pub fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(remove_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// The error of a command.
#[derive(Debug, Serialize)]
struct Failure<'a> {
    error: Details<'a>,
}

#[derive(Debug, Serialize)]
struct Details<'a> {
    /// `usage` (exit status 2) or `failed` (exit status 1).
    kind: &'static str,
    what: &'a str,
    why: &'a str,
    fix: Option<String>,
    errno: Option<i32>,
}

/// A message of a command while it runs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Said {
    /// The host that sent the message, if several hosts take part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    pub notice: Value,
    /// Text for people.
    pub text: String,
}

/// Writes a notice to standard error, as one line.
pub fn notice(host: Option<&str>, notice: impl Into<Value>, text: &str) {
    let said = Said { host: host.map(str::to_owned), notice: notice.into(), text: text.to_owned() };
    if let Ok(text) = serde_json::to_string(&said) {
        terminal::say_line(&text::in_json(&text));
    }
}

/// Reports an event of a capture on standard error: as a sentence, or as a line of JSON if the command line asks for
/// that.
pub fn event<'a, E: fmt::Display>(event: &'a E)
where
    Value: From<&'a E>,
{
    event_as(event, &event.to_string());
}

/// Reports an event with another sentence.
pub fn event_as(event: impl Into<Value>, text: &str) {
    if is_wanted() { notice(None, event, text) } else { terminal::say(text) }
}

/// Reports on standard error: a sentence for people, or `data` with its kind if the command line asks for JSON.
pub fn say(kind: &str, mut data: Value, text: &str) {
    if !is_wanted() {
        return terminal::say(text);
    }
    data["kind"] = kind.into();
    notice(None, data, text);
}

/// Reports a notice of a library on standard error: its sentence, or the value with its kind if the command line asks
/// for JSON.
pub fn show_notice(notice: &(impl Serialize + fmt::Display)) {
    event_as(serde_json::to_value(notice).unwrap_or_default(), &notice.to_string());
}

/// Returns true if the command line asks for JSON, before the rest of it is known to be valid.
pub fn is_wanted() -> bool {
    let mut arguments = std::env::args_os().take_while(|argument| argument != "--");
    arguments.any(|argument| {
        let text = argument.as_encoded_bytes();
        text == b"--json" || text.starts_with(b"--json=")
    })
}

/// Writes an error to standard error: standard output holds results only.
pub fn report(error: &Error) {
    let kind = match error.kind() {
        ErrorKind::Usage => "usage",
        ErrorKind::Failed => "failed",
    };
    write_failure(Details {
        kind,
        what: error.what(),
        why: error.why(),
        fix: error.how_to_fix().map(str::to_owned),
        errno: error.errno(),
    });
}

/// Writes an error in the command line to standard error.
pub fn report_usage(why: &str) {
    write_failure(Details {
        kind: "usage",
        what: "the command line is wrong",
        why,
        fix: Some("trawl --help".to_owned()),
        errno: None,
    });
}

fn write_failure(error: Details<'_>) {
    if let Ok(text) = serde_json::to_string(&Failure { error }) {
        terminal::say_line(&text::in_json(&text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Document {
        #[serde(serialize_with = "rounded")]
        seconds: f64,
        #[serde(serialize_with = "rounded_option")]
        rate: Option<f64>,
    }

    #[test]
    fn numbers_have_no_digits_of_the_computation() {
        let document = Document { seconds: 2.927_498_895_000_000_3, rate: None };
        assert_eq!(line(&document).unwrap(), "{\"seconds\":2.927498895,\"rate\":null}\n");
    }
}
