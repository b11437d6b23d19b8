//! `trawl extcap fields`: the fields of the post-dissector, the post-dissector itself, and docs/pcapng.md.

use std::fmt::Write as _;

use trawl_packet::pcapng::note::keys::{Comment, FIELDS, Field, KEYS, PHRASES};
use trawl_packet::pcapng::reference::{BLOCKS, Definition};

use super::dissector::{self, EXPERTS, Expert};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the post-dissector, a file of Lua for Wireshark
    #[arg(long, conflicts_with = "markdown")]
    lua: bool,
    /// Print the reference of all blocks, options, keys and fields
    #[arg(long)]
    markdown: bool,
}

/// Returns the chosen text.
pub fn text(args: &Args) -> String {
    match args {
        Args { lua: true, .. } => dissector::lua(),
        Args { markdown: true, .. } => markdown(),
        _ => list(),
    }
}

/// Returns a line for each field.
fn list() -> String {
    let width = FIELDS.iter().map(|field| field.name.len()).max().unwrap_or(0);
    let line = |field: &&Field| {
        let Field { name, kind, about, .. } = field;
        format!("{name:width$}  {:8}  {about}\n", dissector::type_name(*kind))
    };
    let expert = |Expert { field, about, .. }: &Expert| format!("{field:width$}  {:8}  {about}\n", "expert");
    FIELDS.iter().map(line).chain(EXPERTS.iter().map(expert)).collect()
}

/// Returns docs/pcapng.md.
fn markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    blocks(&mut out);
    keys(&mut out);
    sentences(&mut out);
    fields(&mut out);
    out
}

const INTRODUCTION: &str = "# What trawl writes into pcapng files

`trawl extcap fields --markdown` prints this page from the tables by which trawl writes its files.

`trawl extcap install` and the packages install a post-dissector for Wireshark and tshark (4.0 and later): it shows the
comments of packets as fields, which filters, columns and `-e` use. Without it, these readers show the comments as text
(`frame.comment`).
";

// Writing to a String cannot fail, so that the results are dropped.
fn blocks(out: &mut String) {
    out.push_str("\n## Blocks and options\n");
    for row in BLOCKS {
        let definition = match row.defined {
            Definition::Standard => "The standard (draft-ietf-opsawg-pcapng) defines it.".to_owned(),
            Definition::Enterprise(number) => {
                format!("It is a custom block of the standard, of the enterprise with the number {number}.")
            }
            Definition::Local => "The standard reserves this number for local use.".to_owned(),
        };
        let _ = write!(out, "\n### {} (`{:#010x}`)\n\n{} {definition}\n", row.name, row.kind, row.about);
        if !row.options.is_empty() {
            out.push_str("\n| option | code | contents | readers and fields |\n|---|---|---|---|\n");
        }
        for option in row.options {
            let _ = writeln!(out, "| `{}` | {} | {} | {} |", option.name, option.code, option.about, option.shown);
        }
    }
}

/// Returns the kind of a comment, for a heading.
fn heading(comment: Comment) -> &'static str {
    match comment {
        Comment::Drop => "Dropped packets",
        Comment::Step => "Steps of a followed packet",
        Comment::Process => "Processes of packets",
        Comment::Socket => "Sockets of packets",
        Comment::Segments => "Segments of a packet",
        Comment::Program => "XDP programs of interfaces",
        Comment::Pod => "Pods of interfaces",
        Comment::Cgroup => "Containers of processes",
        Comment::Clock => "Clocks",
        Comment::Translation => "Translations of addresses",
    }
}

fn keys(out: &mut String) {
    out.push_str(
        "\n## Keys of comments\n
The comments are words `KEY=VALUE`, separated by blanks. A name in a word has `_` in place of white space. The words about a
socket are one word of a drop or a step: `socket=5_cgroup=/a_owner=shared`. Readers skip unknown words. No comment has a form that the standard registers; `trawl read`, `trawl why`, `trawl follow` and
`trawl stat` read them all. Wireshark passes to dissectors neither the comments of sections, of names and of processes
nor those of interfaces; trawl repeats the latter in `if_description`.\n",
    );
    for comment in Comment::ALL {
        let begins: Vec<String> = comment.begins().iter().map(|key| format!("`{}=`", key.word)).collect();
        let _ = write!(
            out,
            "\n### {}\n\nIn blocks: {}. Begins with {}.\n\n| key | contents | fields |\n|---|---|---|\n",
            heading(comment),
            comment.block(),
            begins.join(" or ")
        );
        for key in KEYS {
            let Some((_, fields)) = key.fields.iter().find(|(of, _)| *of == comment) else { continue };
            let names: Vec<String> = fields.iter().map(|field| format!("`{}`", field.name)).collect();
            let names = if names.is_empty() { elsewhere(comment).to_owned() } else { names.join(", ") };
            let _ = writeln!(out, "| `{}` | {} | {names} |", key.word, key.about);
        }
    }
}

/// Returns the remark on keys without fields.
fn elsewhere(comment: Comment) -> &'static str {
    if comment == Comment::Step { "as for dropped packets" } else { "none" }
}

fn sentences(out: &mut String) {
    out.push_str("\n## Sentences\n\nOther comments of packets are sentences.\n\n| begins with | contents | fields |\n|---|---|---|\n");
    for phrase in PHRASES {
        let numbers = phrase.numbers.iter().map(|(_, field)| field);
        let names: Vec<String> =
            std::iter::once(&phrase.field).chain(numbers).map(|field| format!("`{}`", field.name)).collect();
        let _ = writeln!(out, "| `{}` | {} | {} |", phrase.begin.trim_end(), phrase.about, names.join(", "));
    }
}

fn fields(out: &mut String) {
    out.push_str("\n## Fields of the post-dissector\n\n| field | type | contents |\n|---|---|---|\n");
    for Field { name, kind, about, .. } in FIELDS {
        let _ = writeln!(out, "| `{name}` | {} | {about} |", dissector::type_name(*kind));
    }
    for Expert { field, about, .. } in EXPERTS {
        let _ = writeln!(out, "| `{field}` | expert | {about} |");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_is_the_generated_one() {
        let page = include_str!("../../../../docs/pcapng.md");
        assert!(page == markdown(), "run: trawl extcap fields --markdown > docs/pcapng.md");
    }

    #[test]
    fn each_field_has_a_line() {
        assert_eq!(list().lines().count(), FIELDS.len() + EXPERTS.len());
    }
}
