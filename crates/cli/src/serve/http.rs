//! The pages of `trawl serve`.

use trawl_front::http::{Answer, Request};
use trawl_sys::Result;

use super::Plots;
use super::{Figures, metrics};

const PAGE: &str = include_str!("page.html");

/// Answers a request for a page.
pub(super) fn answer(request: &Request, figures: &dyn Fn() -> Result<Figures>, plots: &dyn Fn() -> Plots) -> Answer {
    let plain = Answer::plain;
    if request.method != "GET" {
        return plain("405 Method Not Allowed", "only GET is answered\n");
    }
    if let Some(refusal) = request.refuse_pages() {
        return refusal;
    }
    let answer = |make: fn(&Figures) -> Option<String>, kind| match figures() {
        Ok(figures) => match make(&figures) {
            Some(body) => Answer::new("200 OK", kind, body),
            None => plain("500 Internal Server Error", "the figures cannot be shown\n"),
        },
        Err(error) => plain("500 Internal Server Error", &format!("{error}\n")),
    };
    match request.target.split('?').next().unwrap_or("") {
        "/" => Answer::new("200 OK", "text/html", PAGE),
        "/metrics" => answer(|figures| Some(metrics::text(figures)), trawl_front::prometheus::KIND),
        "/figures.json" => answer(|figures| serde_json::to_string(figures).ok(), "application/json"),
        "/history.json" => match serde_json::to_string(&plots()) {
            Ok(body) => Answer::new("200 OK", "application/json", body),
            Err(error) => plain("500 Internal Server Error", &format!("{error}\n")),
        },
        _ => plain("404 Not Found", "the pages are /, /metrics, /figures.json and /history.json\n"),
    }
}
