//! The table of the index in the open format Iceberg (version 2), which other engines read. A manifest lists the data
//! files, a list the only manifest, the metadata the list. All are written again with each version, and never changed.

use std::collections::BTreeMap;

use parquet::basic::Type;
use parquet::file::metadata::ParquetMetaData;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trawl_sys::{Error, Result, clock};

use super::avro::{self, Record};
use super::unpublished::Draft;
use crate::index::schema::{COLUMNS, Kind};
use crate::object::remote::{Failure, Store};

/// Directory of the index.
pub const ROOT: &str = "index";
const MANIFEST: &str = include_str!("table/manifest.avsc");
const LIST: &str = include_str!("table/list.avsc");
/// Property that names the object with the other contents of the catalogue.
const STATE: &str = "trawl.state";
/// Maximum length of a text that bounds a column.
const BOUND_MOST: usize = 64;
/// Number of earlier versions whose metadata stays. If it were deleted sooner, a slow writer could create an old
/// version again.
const VERSIONS_KEPT: u64 = 50;

/// Statistics of a column of a file; bounds are in the form of Iceberg's single values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Bounds {
    values: i64,
    nulls: i64,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
}

/// A data file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    pub key: String,
    pub date: String,
    pub bytes: u64,
    pub rows: u64,
    pub first_ns: i64,
    pub last_ns: i64,
    /// By the number of the column.
    columns: BTreeMap<i32, Bounds>,
    /// Offset of each row group.
    groups: Vec<i64>,
    /// Snapshot that added it, and its number.
    snapshot: i64,
    sequence: i64,
}

/// Compares two values of a physical type in Parquet's plain form.
fn less(one: &[u8], other: &[u8], kind: Type) -> bool {
    let number = |bytes: &[u8]| match kind {
        Type::INT32 => bytes.first_chunk().map(|b| i64::from(i32::from_le_bytes(*b))),
        _ => bytes.first_chunk().map(|b| i64::from_le_bytes(*b)),
    };
    match kind {
        Type::BYTE_ARRAY | Type::BOOLEAN => one < other,
        _ => number(one) < number(other),
    }
}

/// Replaces a bound by a new one that is farther out.
fn widen(bound: &mut Option<Vec<u8>>, new: Option<&[u8]>, is_out: impl Fn(&[u8], &[u8]) -> bool) {
    if let Some(new) = new
        && bound.as_deref().is_none_or(|known| is_out(new, known))
    {
        *bound = Some(new.to_vec());
    }
}

impl DataFile {
    /// Describes a file by its statistics.
    pub fn describe(key: String, date: String, bytes: u64, metadata: &ParquetMetaData) -> Self {
        let mut columns: BTreeMap<i32, Bounds> = BTreeMap::new();
        let mut groups = Vec::new();
        for group in metadata.row_groups() {
            groups.push(group.column(0).byte_range().0 as i64);
            for (number, column) in group.columns().iter().enumerate() {
                let kind = column.column_type();
                let bounds = columns.entry(number as i32 + 1).or_default();
                bounds.values += column.num_values();
                let Some(statistics) = column.statistics() else {
                    continue;
                };
                bounds.nulls += statistics.null_count_opt().unwrap_or(0) as i64;
                let (least, most) = (statistics.min_bytes_opt(), statistics.max_bytes_opt());
                widen(&mut bounds.lower, least, |new, known| less(new, known, kind));
                widen(&mut bounds.upper, most, |new, known| less(known, new, kind));
            }
        }
        for bounds in columns.values_mut() {
            for bound in [&mut bounds.lower, &mut bounds.upper] {
                *bound = bound.take().filter(|bytes| bytes.len() <= BOUND_MOST);
            }
        }
        let time = COLUMNS.iter().position(|column| column.name == "time_ns");
        let times = time.and_then(|number| columns.get(&(number as i32 + 1)));
        let ns = |bound: Option<&Option<Vec<u8>>>| {
            let bytes = bound.and_then(|bound| bound.as_ref()?.first_chunk());
            bytes.map_or(0, |bytes| i64::from_le_bytes(*bytes))
        };
        Self {
            first_ns: ns(times.map(|bounds| &bounds.lower)),
            last_ns: ns(times.map(|bounds| &bounds.upper)),
            key,
            date,
            bytes,
            rows: metadata.file_metadata().num_rows() as u64,
            columns,
            groups,
            snapshot: 0,
            sequence: 0,
        }
    }

    /// Returns its entry in the manifest; `is_new` is set in the snapshot that adds it.
    fn entry(&self, location: &str, is_new: bool) -> Record {
        let mut entry = Record::default();
        let sequence = (!is_new).then_some(self.sequence);
        entry.long(i64::from(is_new));
        entry.optional_long(Some(self.snapshot));
        // A new file has the number of the snapshot.
        entry.optional_long(sequence);
        entry.optional_long(sequence);
        entry.long(0);
        entry.text(&path(location, &self.key));
        entry.text("PARQUET");
        entry.is_present(true);
        entry.text(&self.date);
        entry.long(self.rows as i64);
        entry.long(self.bytes as i64);
        for count in [|one: &Bounds| one.values, |one: &Bounds| one.nulls] {
            entry.is_present(true);
            entry.list(self.columns.iter(), |entry, (number, bounds)| {
                entry.long((*number).into());
                entry.long(count(bounds));
            });
        }
        for bound in [|one: &Bounds| one.lower.clone(), |one: &Bounds| one.upper.clone()] {
            let columns = self.columns.iter();
            let bounds: Vec<(i32, Vec<u8>)> =
                columns.filter_map(|(number, one)| Some((*number, bound(one)?))).collect();
            entry.is_present(true);
            entry.list(bounds.iter(), |entry, (number, bytes)| {
                entry.long((*number).into());
                entry.bytes(bytes);
            });
        }
        entry.is_present(true);
        entry.list(self.groups.iter(), |entry, offset| entry.long(*offset));
        entry
    }
}

/// Returns the address of an object for other engines.
fn path(location: &str, key: &str) -> String {
    let below = key.strip_prefix(ROOT).unwrap_or(key);
    format!("{location}{below}")
}

/// A version of the table.
#[derive(Clone, Debug)]
pub struct Table {
    version: u64,
    metadata: Value,
}

/// A version to be published, and the objects of the version before it.
#[derive(Debug)]
pub struct Next {
    pub table: Table,
    pub replaced: Vec<String>,
}

fn metadata_key(version: u64) -> String {
    format!("{ROOT}/metadata/v{version}.metadata.json")
}

fn manifest_key(snapshot: i64) -> String {
    format!("{ROOT}/metadata/{snapshot}-m0.avro")
}

fn list_key(snapshot: i64) -> String {
    format!("{ROOT}/metadata/snap-{snapshot}.avro")
}

/// Returns the key of the number of the newest version, for readers that do not list.
fn hint() -> String {
    format!("{ROOT}/metadata/version-hint.text")
}

/// Returns true if a key belongs to the metadata of a version.
pub fn is_version(key: &str) -> bool {
    version_of(key).is_some()
}

fn version_of(key: &str) -> Option<u64> {
    let name = key.strip_prefix(ROOT)?.strip_prefix("/metadata/v")?;
    name.strip_suffix(".metadata.json")?.parse().ok()
}

/// Returns a number that no other snapshot has.
fn unique() -> i64 {
    (uuid::Uuid::new_v4().as_u64_pair().0 >> 1).cast_signed()
}

/// Returns the newest version of a store's table.
fn newest(store: &Store) -> Result<Option<u64>> {
    let listed = store.list(Some(&format!("{ROOT}/metadata")))?;
    Ok(listed.iter().filter_map(|object| version_of(&object.key)).max())
}

fn first(location: &str) -> Value {
    let fields: Vec<Value> = COLUMNS
        .iter()
        .enumerate()
        .map(|(number, column)| {
            let kind = match column.kind {
                Kind::Time => "timestamptz",
                Kind::Text => "string",
                Kind::Int => "int",
                Kind::Long => "long",
                Kind::Bool => "boolean",
            };
            json!({ "id": number + 1, "name": column.name, "required": !column.optional, "type": kind })
        })
        .collect();
    let date = COLUMNS.iter().position(|column| column.name == "date").unwrap_or(0) + 1;
    json!({
        "format-version": 2,
        "table-uuid": uuid::Uuid::new_v4().to_string(),
        "location": location,
        "last-sequence-number": 0,
        "last-column-id": COLUMNS.len(),
        "current-schema-id": 0,
        "schemas": [{ "type": "struct", "schema-id": 0, "fields": fields }],
        "default-spec-id": 0,
        "partition-specs": [{ "spec-id": 0, "fields": [
            { "field-id": 1000, "source-id": date, "name": "date", "transform": "identity" }] }],
        "last-partition-id": 1000,
        "default-sort-order-id": 0,
        "sort-orders": [{ "order-id": 0, "fields": [] }],
        "properties": {},
        "snapshot-log": [],
        "metadata-log": [],
    })
}

impl Table {
    pub fn newest(store: &Store) -> Result<Option<Self>> {
        let Some(version) = newest(store)? else {
            return Ok(None);
        };
        let key = metadata_key(version);
        let metadata = serde_json::from_slice(&store.read(&key)?).map_err(|e| {
            Error::failed(format!("cannot read {key}"), e)
                .fix("rebuild the catalogue with trawl store index --rebuild URL")
        })?;
        Ok(Some(Self { version, metadata }))
    }

    /// Returns a table without contents in place of the newest version, which need not be readable.
    pub fn start_over(store: &Store) -> Result<Option<Self>> {
        let location = format!("{}/{ROOT}", store.location());
        let version = newest(store)?;
        Ok(version.map(|version| Self { version, metadata: first(&location) }))
    }

    /// Returns the keys of the objects that this version refers to, besides the data files.
    pub fn objects(&self) -> Vec<String> {
        let mut objects = vec![self.state(), hint(), format!("{ROOT}/lease.json")];
        let snapshot = self.metadata["snapshots"][0]["snapshot-id"].as_i64();
        objects.extend(snapshot.into_iter().flat_map(|id| [manifest_key(id), list_key(id)]));
        objects
    }

    /// Returns the key of the object with the other contents of the catalogue.
    pub fn state(&self) -> String {
        let key = &self.metadata["properties"][STATE];
        key.as_str().unwrap_or_default().to_owned()
    }

    pub fn set_state(&mut self, key: &str) {
        self.metadata["properties"] = json!({ STATE: key });
    }

    /// Makes the version after `previous`, with the data files `files`, to which `add` is appended.
    pub fn next(
        previous: Option<&Self>,
        draft: &mut Draft<'_>,
        files: &mut Vec<DataFile>,
        add: &[DataFile],
    ) -> Result<Next> {
        let location = format!("{}/{ROOT}", draft.store.location());
        let version = previous.map_or(1, |table| table.version + 1);
        let mut metadata = previous.map_or_else(|| first(&location), |table| table.metadata.clone());
        metadata["location"] = json!(location);
        // An older trawl may have made the table with fewer columns.
        let own = first(&location);
        for key in ["schemas", "last-column-id"] {
            metadata[key] = own[key].clone();
        }
        let sequence = metadata["last-sequence-number"].as_i64().unwrap_or(0) + 1;
        let (snapshot, now_ms) = (unique(), clock::wall() / 1_000_000);
        let mut entries: Vec<Record> = files.iter().map(|file| file.entry(&location, false)).collect();
        let kept: (usize, u64) = (files.len(), files.iter().map(|file| file.rows).sum());
        for file in add {
            let file = DataFile { snapshot, sequence, ..file.clone() };
            entries.push(file.entry(&location, true));
            files.push(file);
        }
        let added: (usize, u64) = (add.len(), add.iter().map(|file| file.rows).sum());
        let manifest = avro::file(
            MANIFEST,
            &[
                ("schema", metadata["schemas"][0].to_string()),
                ("schema-id", "0".to_owned()),
                ("partition-spec", metadata["partition-specs"][0]["fields"].to_string()),
                ("partition-spec-id", "0".to_owned()),
                ("format-version", "2".to_owned()),
                ("content", "data".to_owned()),
            ],
            &entries,
        );
        let manifest_key = manifest_key(snapshot);
        let mut entry = Record::default();
        entry.text(&path(&location, &manifest_key));
        entry.long(manifest.len() as i64);
        entry.long(0);
        entry.long(0);
        entry.long(sequence);
        entry.long(files.iter().map(|file| file.sequence).min().unwrap_or(sequence));
        entry.long(snapshot);
        for count in [added.0 as i64, kept.0 as i64, 0, added.1 as i64, kept.1 as i64, 0] {
            entry.long(count);
        }
        entry.is_present(true);
        entry.list([0].into_iter(), |entry, _| {
            entry.boolean(false);
            entry.is_present(false);
            for date in [files.iter().map(|file| &file.date).min(), files.iter().map(|file| &file.date).max()] {
                entry.is_present(date.is_some());
                date.into_iter().for_each(|date| entry.text(date));
            }
        });
        draft.write(&manifest_key, manifest)?;
        let list = avro::file(
            LIST,
            &[
                ("snapshot-id", snapshot.to_string()),
                ("parent-snapshot-id", "null".to_owned()),
                ("sequence-number", sequence.to_string()),
                ("format-version", "2".to_owned()),
            ],
            &[entry],
        );
        let list_key = list_key(snapshot);
        draft.write(&list_key, list)?;
        let mut replaced = Vec::new();
        if let Some(previous) = previous {
            replaced.extend(previous.objects());
            replaced.retain(|key| key.ends_with(".avro"));
            replaced.push(previous.state());
        }
        let logged = previous.map(|previous| {
            json!({ "timestamp-ms": metadata["last-updated-ms"], "metadata-file": path(&location, &metadata_key(previous.version)) })
        });
        if let (Some(log), Some(logged)) = (metadata["metadata-log"].as_array_mut(), logged) {
            log.push(logged);
            log.drain(..log.len().saturating_sub(VERSIONS_KEPT as usize));
        }
        let total = (kept.0 + added.0, kept.1 + added.1);
        metadata["last-sequence-number"] = json!(sequence);
        metadata["last-updated-ms"] = json!(now_ms);
        metadata["current-snapshot-id"] = json!(snapshot);
        metadata["refs"] = json!({ "main": { "snapshot-id": snapshot, "type": "branch" } });
        metadata["snapshot-log"] = json!([{ "timestamp-ms": now_ms, "snapshot-id": snapshot }]);
        // Earlier versions are not kept: their files are deleted.
        metadata["snapshots"] = json!([{
            "snapshot-id": snapshot,
            "sequence-number": sequence,
            "timestamp-ms": now_ms,
            "schema-id": 0,
            "manifest-list": path(&location, &list_key),
            "summary": {
                "operation": "overwrite",
                "added-data-files": added.0.to_string(),
                "added-records": added.1.to_string(),
                "total-data-files": total.0.to_string(),
                "total-records": total.1.to_string(),
            },
        }]);
        let table = Self { version, metadata };
        Ok(Next { table, replaced })
    }

    /// Publishes this version, unless another one has its number.
    pub fn publish(&self, store: &Store) -> std::result::Result<(), Failure> {
        let key = metadata_key(self.version);
        store.put_once(&key, self.metadata.to_string().into_bytes())
    }

    /// Points readers that do not list to this version.
    pub fn point_to(&self, store: &Store) -> std::result::Result<(), Failure> {
        store.overwrite(&hint(), self.version.to_string().into_bytes())
    }

    /// Returns the key of the metadata of a version so old that no writer can still be working on it.
    pub fn outdated(&self) -> Option<String> {
        self.version.checked_sub(VERSIONS_KEPT).map(metadata_key)
    }
}
