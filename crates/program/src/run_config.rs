//! What a program's source says of its place in a chain.

use crate::actions::{Actions, verdict_by_name};

/// A program's place in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunConfig {
    /// Lower ones run first.
    pub priority: u32,
    /// The verdicts after which the next program runs.
    pub actions: Actions,
}

impl RunConfig {
    /// Where libxdp's macro `XDP_RUN_CONFIG` puts it.
    pub const SECTION: &str = ".xdp_run_config";
    const DEFAULT_PRIORITY: u32 = 50;

    /// From the members of the program's structure in that section.
    pub fn from_numbers(numbers: &[(String, u32)]) -> Self {
        let says_actions = numbers
            .iter()
            .any(|(name, _)| verdict_by_name(name).is_some());
        let named = numbers
            .iter()
            .filter(|(_, on)| *on != 0)
            .filter_map(|(name, _)| verdict_by_name(name));
        let priority = numbers.iter().find(|(name, _)| name == "priority");
        Self {
            priority: priority.map_or(Self::DEFAULT_PRIORITY, |(_, number)| *number),
            actions: match says_actions {
                true => named.collect(),
                false => Actions::DEFAULT,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(numbers: &[(&str, u32)]) -> (u32, String) {
        let numbers: Vec<_> = numbers
            .iter()
            .map(|(name, number)| ((*name).to_owned(), *number))
            .collect();
        let config = RunConfig::from_numbers(&numbers);
        (config.priority, config.actions.to_string())
    }

    #[test]
    fn a_run_config_says_where_in_a_chain() {
        assert_eq!(config(&[]), (50, "pass".to_owned()));
        assert_eq!(config(&[("priority", 10)]), (10, "pass".to_owned()));
        assert_eq!(
            config(&[("priority", 7), ("XDP_DROP", 1), ("XDP_PASS", 0)]),
            (7, "drop".to_owned())
        );
        assert_eq!(config(&[("XDP_PASS", 0)]), (50, String::new()));
    }
}
