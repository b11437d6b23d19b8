//! The best configuration of each program on this machine. Before its first measurement, a short round tries the
//! configurations of a small grid, and keeps the one with the highest rate. For a recorder, that is the rate at which
//! it records every packet.

use parking_lot::Mutex;
use trawl_front::terminal;

use crate::configuration::{Configuration, DEFAULTS};
use crate::model::{Tried, Tuning};
use crate::outcome::Stop;

/// The choices so far.
#[derive(Debug, Default)]
pub struct Tuned(Mutex<Vec<Tuning>>);

impl Tuned {
    pub fn from(choices: Vec<Tuning>) -> Self {
        Self(Mutex::new(choices))
    }

    pub fn all(&self) -> Vec<Tuning> {
        self.0.lock().clone()
    }

    /// Returns the configuration of a grid with the highest rate; the first call for a program measures them all.
    pub fn choose(
        &self,
        name: &str,
        grid: &[Configuration],
        mut rate: impl FnMut(Configuration) -> Result<f64, Stop>,
    ) -> Result<Configuration, Stop> {
        if let [only] = grid {
            return Ok(*only);
        }
        let known = |choices: &[Tuning]| {
            let choice = choices.iter().find(|one| one.program == name)?;
            let mut all = grid.iter();
            all.find(|one| one.to_string() == choice.best).copied()
        };
        if let Some(found) = known(&self.0.lock()) {
            return Ok(found);
        }
        let mut tried = Vec::new();
        for configuration in grid {
            tried.push((rate(*configuration)?, *configuration));
        }
        let (mpps, best) = best_of(&tried);
        terminal::say(&format!("{name}: {best} is the best of {} configurations ({mpps:.2} Mpps)", grid.len()));
        let tried =
            tried.iter().map(|(mpps, configuration)| Tried { configuration: configuration.to_string(), mpps: *mpps });
        self.0.lock().push(Tuning { program: name.to_owned(), best: best.to_string(), tried: tried.collect() });
        Ok(best)
    }
}

/// Minimum gain over an earlier configuration: less is noise, and the defaults come first.
const MIN_GAIN: f64 = 1.1;

fn best_of(tried: &[(f64, Configuration)]) -> (f64, Configuration) {
    let better =
        |best: (f64, Configuration), one: &(f64, Configuration)| if one.0 > best.0 * MIN_GAIN { *one } else { best };
    let first = tried.first().copied().unwrap_or((0.0, DEFAULTS));
    tried.iter().fold(first, better)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::without_gro;
    use crate::recorder::RECORDERS;

    #[test]
    fn each_grid_begins_with_the_defaults_and_has_distinct_names() {
        for (name, recorder) in RECORDERS {
            let mut names: Vec<String> = recorder.grid().iter().map(ToString::to_string).collect();
            assert_eq!(names[0], "defaults", "{name}");
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), recorder.grid().len(), "{name}");
        }
    }

    #[test]
    fn gains_within_noise_keep_the_earlier_configuration() {
        let large = without_gro(&["-B", "128"]);
        assert_eq!(best_of(&[(1.0, DEFAULTS), (1.08, large)]).1, DEFAULTS);
        assert_eq!(best_of(&[(1.0, DEFAULTS), (1.2, large)]).1, large);
        assert_eq!(best_of(&[(0.0, DEFAULTS), (0.0, large)]).1, DEFAULTS);
    }
}
