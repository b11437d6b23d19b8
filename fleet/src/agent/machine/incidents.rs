//! Incidents of a host: each is frozen once, and then stored like other leftovers in the spool.

use std::collections::BTreeMap;

use super::Action;
use crate::agent::desired::Incident;
use crate::agent::report::{Frozen, IncidentPhase, IncidentReport};

#[derive(Debug, Default)]
pub struct Incidents(BTreeMap<String, Entry>);

#[derive(Debug)]
struct Entry {
    report: IncidentReport,
    is_desired: bool,
    /// Set if the present attempt to store the spool began after the incident was frozen.
    is_pushed: bool,
}

impl Incidents {
    /// Restores the incidents that a previous agent has frozen.
    pub fn remembered(reports: Vec<IncidentReport>) -> Self {
        let entries = reports.into_iter().map(|report| {
            let entry = Entry { report, is_desired: false, is_pushed: false };
            (entry.report.id.clone(), entry)
        });
        Self(entries.collect())
    }

    /// Follows the desired incidents, with the reasons why some are refused; returns the actions for new ones. Incidents
    /// that are over and no longer desired are forgotten, but only once all desired states are known.
    pub fn desire(&mut self, incidents: &[(Incident, Option<String>)], are_all_known: bool) -> Vec<Action> {
        for entry in self.0.values_mut() {
            entry.is_desired = incidents.iter().any(|(one, _)| one.id == entry.report.id);
        }
        if are_all_known {
            self.0.retain(|_, entry| entry.is_desired || !entry.report.phase.is_over());
        }
        let mut actions = Vec::new();
        for (incident, refused) in incidents {
            if self.0.contains_key(&incident.id) {
                continue;
            }
            let phase = if refused.is_none() { IncidentPhase::Freezing } else { IncidentPhase::Failed };
            let error = refused.clone();
            let report = IncidentReport { id: incident.id.clone(), phase, frozen: Frozen::default(), error };
            let entry = Entry { report, is_desired: true, is_pushed: false };
            self.0.insert(incident.id.clone(), entry);
            if refused.is_none() {
                actions.push(Action::Freeze(Box::new(incident.clone())));
            }
        }
        actions
    }

    pub fn knows(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    pub fn frozen(&mut self, id: &str, outcome: Result<Frozen, String>) {
        let Some(entry) = self.0.get_mut(id) else {
            return;
        };
        let report = &mut entry.report;
        match outcome {
            Ok(frozen) => {
                report.phase = IncidentPhase::Frozen;
                report.frozen = frozen;
            }
            Err(why) => {
                report.phase = IncidentPhase::Failed;
                report.error = Some(why);
            }
        }
    }

    pub fn push_begins(&mut self) {
        for entry in self.0.values_mut() {
            entry.is_pushed = entry.report.phase == IncidentPhase::Frozen;
        }
    }

    pub fn pushed(&mut self, all: bool) {
        for entry in self.0.values_mut().filter(|entry| entry.is_pushed) {
            entry.is_pushed = false;
            if all {
                entry.report.phase = IncidentPhase::Stored;
            }
        }
    }

    pub fn reports(&self) -> Vec<IncidentReport> {
        self.0.values().map(|entry| entry.report.clone()).collect()
    }

    /// Returns the incidents for the next agent, which freezes the ones that are not frozen yet.
    pub fn memory(&self) -> Vec<IncidentReport> {
        let mut reports = self.reports();
        reports.retain(|report| report.phase != IncidentPhase::Freezing);
        reports
    }
}

impl IncidentPhase {
    fn is_over(self) -> bool {
        matches!(self, Self::Stored | Self::Failed)
    }
}
