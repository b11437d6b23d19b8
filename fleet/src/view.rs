//! The page about a store, and the answers to its questions.

mod asked;
mod paging;
mod places;
mod question;
mod table;
mod users;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use trawl_front::http::{Answer, Body, Client, Request};
use trawl_front::json;
use trawl_sys::Error;

use asked::Asked;
use paging::Paging;
use places::NoPlace;
pub use question::Questions;
use question::{Outcome, Refusal, Running, Stop};
use table::{Lines, Rows};
pub use users::Users;

const PAGE: &str = include_str!("view/page.html");
const STYLE: &str = include_str!("view/page.css");
const SCRIPT: &str = include_str!("view/page.js");
/// The page uses only its own server, and neither scripts nor styles in its text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      form-action 'none'; base-uri 'none'; frame-ancestors 'none'";
/// Maximum size of a document that the page gets as a whole.
const LARGEST: u64 = 64 << 20;
/// Number of bytes of a file of packets that are written at a time.
const PIECE: usize = 256 << 10;

const OK: &str = "200 OK";
const BAD: &str = "400 Bad Request";
const FORBIDDEN: &str = "403 Forbidden";
const FAILED: &str = "500 Internal Server Error";
/// Status of questions that `trawl store` cannot answer.
const UNANSWERED: &str = "422 Unprocessable Content";
const JSON: &str = "application/json";

/// The page about a store.
#[derive(Debug)]
pub struct View {
    /// URL of the store.
    pub store: String,
    pub questions: Questions,
    /// Questions for files of packets, which slow networks delay.
    pub files: Questions,
    pub users: Option<Users>,
    /// Maximum time of a question.
    pub time: Duration,
    /// Arguments of `trawl` that begin a question about this store.
    pub query: Vec<OsString>,
    /// Arguments of `trawl` that list its runs.
    pub list: Vec<OsString>,
    /// Arguments of `trawl` that list the agents; absent without agents.
    pub fleet: Option<Vec<OsString>>,
}

/// A part of an answer, as the page gets it.
#[derive(Serialize)]
struct Shown<T> {
    #[serde(flatten)]
    part: T,
    remarks: Vec<String>,
}

impl View {
    pub fn answer(&self, request: &Request, client: &Client) -> Answer {
        let answer = self.respond(request, client).unwrap_or_else(|refusal| refusal);
        let answer = answer.policy(POLICY).header("Referrer-Policy", "no-referrer");
        answer.header("Cross-Origin-Resource-Policy", "same-origin").header("X-Frame-Options", "DENY")
    }

    fn respond(&self, request: &Request, client: &Client) -> Result<Answer, Answer> {
        // A page of another site does not know a token, so a request with one may name this host in any way.
        let refusal = if self.users.is_none() { request.refuse_pages() } else { request.refuse_origins() };
        refusal.map_or(Ok(()), Err)?;
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        match (request.method.as_str(), path) {
            ("GET", "/") => return Ok(Answer::new(OK, "text/html", PAGE)),
            ("GET", "/page.css") => return Ok(Answer::new(OK, "text/css", STYLE)),
            ("GET", "/page.js") => return Ok(Answer::new(OK, "text/javascript", SCRIPT)),
            ("POST", "/api/login") => return self.log_in(request),
            ("POST", "/api/logout") => return Ok(set_token("", request)),
            ("GET", _) => {}
            _ => return Err(Answer::plain("405 Method Not Allowed", "only GET is answered\n")),
        }
        refuse_other_sites(request)?;
        let user = self.user(request)?;
        let asked = Asked::parse(query).map_err(|why| Answer::plain(BAD, &format!("{why}\n")))?;
        let arguments = match path {
            "/api/session" => {
                return json_answer(&json!({ "store": self.store, "user": user, "has_agents": self.fleet.is_some() }));
            }
            "/api/store" => return self.document(&self.list, client),
            "/api/fleet" => return self.document(self.fleet.as_ref().ok_or_else(not_found)?, client),
            "/api/rows" => asked.rows(),
            "/api/position" => asked.position(),
            "/api/lines" => asked.lines(),
            "/api/incident" => asked.incident(),
            "/packets.pcapng" => Some(asked.packets()),
            _ => return Err(not_found()),
        };
        let Some(arguments) = arguments else {
            let why = "rows need the parameter sql, lines cannot have it, and an incident needs its name\n";
            return Err(Answer::plain(BAD, why));
        };
        log(&user, request, path, &asked);
        let arguments = [&self.query[..], &arguments].concat();
        match path {
            "/api/rows" => self.rows(&arguments, asked.count(), asked.paging(), client),
            "/api/position" => self.rows(&arguments, 1, None, client),
            "/api/lines" => self.lines(&arguments, client),
            "/api/incident" => self.document(&arguments, client),
            _ => self.packets(&arguments, client),
        }
    }

    /// Returns the name of the user; an empty one if the page needs no token.
    fn user(&self, request: &Request) -> Result<String, Answer> {
        let Some(users) = &self.users else { return Ok(String::new()) };
        let user = users.of(request).map_err(|error| failed(&error))?;
        user.ok_or_else(|| Answer::plain("401 Unauthorized", "send Authorization: Bearer TOKEN\n"))
    }

    fn log_in(&self, request: &Request) -> Result<Answer, Answer> {
        let Some(users) = &self.users else { return Ok(Answer::plain(OK, "")) };
        let token = String::from_utf8_lossy(&request.body);
        let user = users.with_token(token.trim()).map_err(|error| failed(&error))?;
        match user {
            Some(_) => Ok(set_token(token.trim(), request)),
            None => Err(Answer::plain(FORBIDDEN, "the token is not known\n")),
        }
    }

    fn start(&self, arguments: &[OsString], client: &Client) -> Result<Running, Answer> {
        self.questions.start(arguments, client).map_err(refused)
    }

    /// Answers with the JSON that a command prints.
    fn document(&self, arguments: &[OsString], client: &Client) -> Result<Answer, Answer> {
        let mut running = self.start(arguments, client)?;
        let mut text = Vec::new();
        let read = running.by_ref().take(LARGEST).read_to_end(&mut text).map_err(|error| cannot_read(&error))?;
        let outcome = running.finish();
        if !outcome.is_success() || read as u64 == LARGEST {
            return Err(self.refusal(outcome));
        }
        Ok(Answer::new(OK, JSON, String::from_utf8_lossy(&text).into_owned()))
    }

    /// Answers with rows; `paging` is the order in which they were asked for.
    fn rows(
        &self,
        arguments: &[OsString],
        count: usize,
        paging: Option<&Paging>,
        client: &Client,
    ) -> Result<Answer, Answer> {
        let mut running = self.start(arguments, client)?;
        let part = Rows::read(&mut running, count).map_err(|error| cannot_read(&error))?;
        let (more, is_empty) = (part.more, part.columns.is_empty());
        let part = match paging {
            Some(paging) => paging.page(part),
            None => part,
        };
        self.part(running, more, is_empty, part)
    }

    fn lines(&self, arguments: &[OsString], client: &Client) -> Result<Answer, Answer> {
        let mut running = self.start(arguments, client)?;
        let part = Lines::read(&mut running).map_err(|error| cannot_read(&error))?;
        let is_empty = part.lines.is_empty();
        self.part(running, part.more, is_empty, part)
    }

    /// Answers with a part of an answer that has been read.
    fn part(&self, mut running: Running, is_cut: bool, is_empty: bool, part: impl Serialize) -> Result<Answer, Answer> {
        if is_cut {
            running.stop();
        }
        let outcome = running.finish();
        if is_empty && !outcome.is_success() && !is_cut {
            return Err(self.refusal(outcome));
        }
        json_answer(&Shown { part, remarks: self.remarks(outcome) })
    }

    fn remarks(&self, outcome: Outcome) -> Vec<String> {
        let over = (outcome.stopped == Some(Stop::TimeOver)).then(|| {
            let seconds = self.time.as_secs_f64();
            format!("the answer is not complete: it takes more than {seconds} s; ask about fewer packets (--time)")
        });
        outcome.remarks.into_iter().map(|remark| remark.text).chain(over).collect()
    }

    /// Answers in the words of a question that has failed.
    fn refusal(&self, outcome: Outcome) -> Answer {
        Answer::plain(UNANSWERED, &(self.remarks(outcome).join("\n") + "\n"))
    }

    fn packets(&self, arguments: &[OsString], client: &Client) -> Result<Answer, Answer> {
        let mut running = self.files.start(arguments, client).map_err(refused)?;
        let mut piece = vec![0; PIECE];
        let mut length = running.read(&mut piece).map_err(|error| cannot_read(&error))?;
        if length == 0 {
            return Err(self.refusal(running.finish()));
        }
        let write = move |out: &mut dyn Write| {
            while length > 0 {
                out.write_all(&piece[..length])?;
                length = running.read(&mut piece)?;
            }
            let outcome = running.finish();
            for remark in &outcome.remarks {
                json::say("remark", json!({ "remark": remark.text }), &remark.text);
            }
            // A browser reports a file without an end as incomplete.
            if outcome.is_whole() { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
        };
        let answer = Answer::new(OK, "application/x-pcapng", Body::Stream(Box::new(write)));
        Ok(answer.header("Content-Disposition", "attachment; filename=\"packets.pcapng\""))
    }
}

/// Refuses requests that a page of another site makes a browser send without an Origin, such as for an image.
fn refuse_other_sites(request: &Request) -> Result<(), Answer> {
    match request.header("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => Err(Answer::plain(FORBIDDEN, "pages of other sites are not answered\n")),
    }
}

fn not_found() -> Answer {
    Answer::plain("404 Not Found", "there is no such page\n")
}

fn set_token(token: &str, request: &Request) -> Answer {
    let is_encrypted = request.header("origin").is_some_and(|origin| origin.starts_with("https:"));
    match users::cookie(token, is_encrypted) {
        Some(cookie) => Answer::plain(OK, "").header("Set-Cookie", cookie),
        None => {
            Answer::plain(BAD, "a browser cannot keep this token: it has other characters than letters and digits\n")
        }
    }
}

fn log(user: &str, request: &Request, path: &str, asked: &Asked) {
    // A question with line ends could look like the question of another user.
    let (address, text) = (request.from, asked.text().replace('\n', "\\n"));
    let by = if user.is_empty() { address.to_string() } else { format!("{user} ({address})") };
    let remark = json!({ "user": user, "address": address, "path": path, "question": text });
    json::say("asked", remark, &format!("{by} asks {path}: {text}"));
}

fn refused(refusal: Refusal) -> Answer {
    match refusal {
        Refusal::NoPlace(NoPlace::Busy) => Answer::plain("503 Service Unavailable", "too many questions wait\n"),
        Refusal::NoPlace(NoPlace::Gone) => Answer::plain(UNANSWERED, ""),
        Refusal::Failed(error) => failed(&error),
    }
}

fn failed(error: &Error) -> Answer {
    Answer::plain(FAILED, &format!("{error}\n"))
}

fn cannot_read(error: &io::Error) -> Answer {
    Answer::plain(FAILED, &format!("cannot read the answer: {error}\n"))
}

fn json_answer(document: &impl Serialize) -> Result<Answer, Answer> {
    let text = serde_json::to_string(document).map_err(|e| failed(&Error::failed("cannot write the answer", e)))?;
    Ok(Answer::new(OK, JSON, text))
}
