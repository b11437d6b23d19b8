//! A question in SQL, which trawl-fleet writes to trawl-query's standard input.

use serde::{Deserialize, Serialize};

use super::condition::Condition;
use crate::catalogue::contents::File;

/// The text of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// A table for people.
    Table,
    Csv,
    /// An array of objects.
    Json,
    /// An object on each line.
    Lines,
    /// Like `Lines`, the places of the packets in chunks, in the order of their times.
    Locations,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// URL of the store.
    pub store: String,
    /// Files of the index.
    pub files: Vec<File>,
    /// Condition that the rows of the tables meet.
    pub condition: Option<Condition>,
    pub sql: String,
    pub form: Form,
    /// Maximum memory of the answering process, in bytes.
    pub memory: u64,
}
