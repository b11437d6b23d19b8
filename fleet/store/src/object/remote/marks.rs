//! The listing of the marks. A server lists a thousand objects with one call, and a call follows the one before it, so the
//! marks of a large store are listed in parts at once. The parts cover all keys, however the marks are distributed: a
//! mark that is made or removed meanwhile is listed or not, as by one call after the other.

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use trawl_spool::key;
use trawl_sys::Result;

use super::{CALLS, Listed, Store};

/// Number of objects that one call lists.
const PAGE: usize = 1000;
/// Number of chunks that a summary has at most.
const SUMMARISED: usize = 64;
/// Maximum number of parts, if the marks belong to one hour.
const PARTS: usize = 64;
/// A text that follows all keys of marks.
const END: &str = "new0";

impl Store {
    /// Returns the marks by name.
    pub fn list_marks(&self) -> Result<Vec<Listed>> {
        if !self.lists_parts {
            return self.list(Some(key::marks()));
        }
        let mut marks = self.runtime.block_on(self.list_in_parts())?;
        marks.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(marks)
    }

    async fn list_in_parts(&self) -> Result<Vec<Listed>> {
        let prefix = Key::from(key::marks());
        let page = self.objects.list(Some(&prefix)).take(PAGE).map_ok(Listed::from);
        let mut marks: Vec<Listed> = page.try_collect().await.map_err(|e| self.unlistable(e))?;
        let last = marks.iter().map(|mark| mark.key.clone()).max();
        if let Some(last) = last.filter(|_| marks.len() == PAGE) {
            marks.extend(self.list_after(last).await?);
        }
        Ok(marks)
    }

    /// Lists the marks after a key.
    async fn list_after(&self, last: String) -> Result<Vec<Listed>> {
        let (hours, runs) = tokio::try_join!(self.hours_of_marks(), self.runs_of_summaries())?;
        let mut bounds = bounds(&hours, &runs);
        bounds.retain(|bound| *bound > last);
        let from = std::iter::once(last).chain(bounds.iter().cloned());
        let to = bounds.iter().cloned().chain([END.to_owned()]);
        let parts = from.zip(to).map(|(from, to)| self.list_between(key::marks(), from, to));
        let parts: Vec<Vec<Listed>> = stream::iter(parts).buffered(CALLS).try_collect().await?;
        Ok(parts.concat())
    }

    /// Returns the directories of the hours of marked chunks.
    async fn hours_of_marks(&self) -> Result<Vec<String>> {
        let dates = self.folders(&[key::marked_chunks()]).await?;
        self.folders(&dates).await
    }

    async fn folders(&self, directories: &[String]) -> Result<Vec<String>> {
        let lists = directories.iter().map(|directory| async move {
            let listed = self.objects.list_with_delimiter(Some(&Key::from(directory.as_str()))).await;
            listed.map_err(|e| self.unlistable(e))
        });
        let listed: Vec<_> = stream::iter(lists).buffered(CALLS).try_collect().await?;
        let folders = listed.into_iter().flat_map(|listed| listed.common_prefixes);
        Ok(folders.map(|folder| folder.to_string()).collect())
    }

    /// Returns the run of each summary, by name.
    async fn runs_of_summaries(&self) -> Result<Vec<String>> {
        let prefix = Key::from(key::summaries());
        let listed: Vec<_> = self.objects.list(Some(&prefix)).try_collect().await.map_err(|e| self.unlistable(e))?;
        let runs = listed.iter().filter_map(|object| Some(key::summarised(object.location.as_ref())?.0.to_owned()));
        let mut runs: Vec<String> = runs.collect();
        runs.sort();
        Ok(runs)
    }
}

/// Returns keys that divide the marks of chunks into parts of about a page, by hours and by runs. A call lists a page, even
/// if a part has less.
fn bounds(hours: &[String], runs: &[String]) -> Vec<String> {
    let parts = (runs.len() * SUMMARISED / PAGE).clamp(1, PARTS);
    let step = runs.len().div_ceil(parts.div_ceil(hours.len().max(1))).max(1);
    let of_hour = |hour: &String| {
        let runs = runs.iter().step_by(step).skip(1).map(move |run| format!("{hour}/{run}"));
        std::iter::once(hour.clone()).chain(runs).collect::<Vec<_>>()
    };
    let mut bounds: Vec<String> = hours.iter().flat_map(of_hour).collect();
    bounds.sort();
    bounds.dedup();
    bounds
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;

    /// Returns a store whose server lists objects in the order of their keys.
    fn store(keys: &[String]) -> Store {
        let store = Store {
            url: "s3://bucket".to_owned(),
            identity: String::new(),
            objects: Arc::new(InMemory::new()),
            directory: None,
            lists_parts: true,
            runtime: tokio::runtime::Builder::new_current_thread().build().expect("a runtime"),
        };
        for key in keys.iter().map(|key| Key::from(key.as_str())) {
            let put = store.objects.put(&key, "x".into());
            store.runtime.block_on(put).expect("memory");
        }
        store
    }

    /// Each mark is listed once, whatever the hosts' clocks and the parts.
    #[test]
    fn all_marks_are_listed_once() {
        for (runs, chunks) in [(1, 3), (1, 999), (1, 1000), (40, 60), (200, 11)] {
            let run = |run: usize| format!("c=2f/h{run}/b/{run}");
            let mut keys = vec!["index/data/x".to_owned(), "newer".to_owned(), "c/h/b/1/begin.json".to_owned()];
            for number in 0..runs {
                keys.push(format!("new/{}/begin.json", run(number)));
                keys.extend(
                    (0..chunks / 64 + 1).map(|part| format!("new/summaries/{}/{:010}", run(number), part * 64)),
                );
                // One clock is years behind, one ahead.
                let date = ["2026-11-30", "1970-01-01", "2099-01-01"][number % 3];
                let chunk =
                    |chunk: usize| format!("new/chunks/{date}/{:02}/{}/{chunk:010}", chunk / 50 % 24, run(number));
                keys.extend((0..chunks).map(|number| chunk(number) + ".parquet"));
            }
            let store = store(&keys);
            let listed = |marks: Vec<Listed>| marks.into_iter().map(|mark| mark.key).collect::<Vec<_>>();
            let expected = listed(store.list(Some(key::marks())).expect("memory"));
            assert!(expected.len() >= runs * (chunks + 2));
            assert_eq!(listed(store.list_marks().expect("memory")), expected);
        }
    }

    #[test]
    fn marks_are_divided_by_hours_and_runs() {
        let texts = |texts: &[&str]| -> Vec<String> { texts.iter().map(|text| (*text).to_owned()).collect() };
        let hours = texts(&["new/chunks/d/01", "new/chunks/d/02"]);
        let runs = |count: usize| (0..count).map(|run| format!("c/h{run:04}/b/1")).collect::<Vec<_>>();
        let expected = ["d/01", "d/01/c/h0032/b/1", "d/02", "d/02/c/h0032/b/1"];
        assert_eq!(bounds(&hours, &runs(63)), expected.map(|end| format!("new/chunks/{end}")));
        assert_eq!(bounds(&hours, &runs(9)), hours);
        assert_eq!(bounds(&hours, &runs(100_000)).len(), PARTS);
        // A run with many summaries has one directory in an hour.
        assert_eq!(
            bounds(&hours[..1], &vec!["c/h/b/1".to_owned(); 100]),
            ["new/chunks/d/01", "new/chunks/d/01/c/h/b/1"]
        );
        assert_eq!(bounds(&hours, &[]), hours);
        assert!(bounds(&[], &runs(99)).is_empty());
    }
}
