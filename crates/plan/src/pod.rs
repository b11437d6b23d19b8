//! Kubernetes pods: the pod of an interface, and the choice of pods by name and label.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use trawl_packet::pcapng::note::{Note, PodNote};
use trawl_sys::names::{Labels, Selector, covers, is_pattern, matches};
use trawl_sys::{Error, Result};

/// A pod, as its host knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub labels: Labels,
    /// Addresses that no other pod or host has.
    pub addresses: Vec<IpAddr>,
}

impl std::fmt::Display for Pod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Pod {
    /// Returns the comment of the pod's interface blocks, which [`trawl_packet::pcapng::Interface::pod`] reads.
    pub fn comment(&self) -> String {
        let labels: Vec<String> = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let labels = Some(labels.join(",")).filter(|labels| !labels.is_empty());
        PodNote { name: &self.to_string(), labels: labels.as_deref() }.text()
    }
}

/// A choice of pods: `NAMESPACE/NAME`, or patterns and labels: `default/*`, `app=web`, `default/app=web,tier!=db`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSelector {
    namespace: String,
    pods: Selector,
}

impl PodSelector {
    /// Parses a choice. A namespace has no dot, unlike the part before the slash of most labels' keys.
    pub fn parse(text: &str) -> Result<Self> {
        let is_namespace = |text: &str| !text.contains(['.', '=', ',']);
        let parts = text.split_once('/').filter(|(namespace, _)| is_namespace(namespace));
        let wrong = |why: &str| {
            Error::usage(format!("cannot understand the pod '{text}'"), why)
                .fix("write default/web-0, 'default/*', app=web or 'default/app=web,tier!=db'")
        };
        let (namespace, pods) = parts.unwrap_or(("*", text));
        let pods = Selector::parse(pods).map_err(|error| wrong(error.why()))?;
        if namespace.is_empty() || (parts.is_none() && pods.is_name()) {
            return Err(wrong("it has no namespace"));
        }
        Ok(Self { namespace: namespace.to_owned(), pods })
    }

    /// Returns true if the choice is one pod's name, not a pattern or labels.
    pub fn is_name(&self) -> bool {
        self.pods.is_name() && !is_pattern(&self.namespace)
    }

    pub fn selects(&self, pod: &Pod) -> bool {
        matches(&self.namespace, &pod.namespace) && self.pods.selects(&pod.name, &pod.labels)
    }

    /// Returns true if this choice certainly selects every pod that the other one selects. It may return false for a
    /// choice that selects them too.
    pub fn covers(&self, other: &Self) -> bool {
        covers(&self.namespace, &other.namespace) && self.pods.covers(&other.pods)
    }
}

#[cfg(test)]
mod tests {
    use trawl_packet::pcapng::Interface;

    use super::*;

    fn pod() -> Pod {
        let label = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        Pod {
            namespace: "default".to_owned(),
            name: "web-0".to_owned(),
            labels: [("app", "web"), ("app.kubernetes.io/part-of", "shop")].map(label).into(),
            addresses: Vec::new(),
        }
    }

    #[test]
    fn pods_are_selected_by_name_and_label() {
        for (text, expected) in [
            ("default/web-0", true),
            ("default/web-1", false),
            ("other/web-0", false),
            ("default/*", true),
            ("*/web-0", true),
            ("app=web", true),
            ("default/app=web,tier!=db", true),
            ("other/app=web", false),
            ("app.kubernetes.io/part-of=shop", true),
            ("*/app.kubernetes.io/part-of=blog", false),
            ("web-*,app=web", true),
            ("*", true),
        ] {
            let selector = PodSelector::parse(text).expect(text);
            assert_eq!(selector.selects(&pod()), expected, "{text}");
            assert_eq!(selector.is_name(), text.starts_with(['d', 'o']) && !text.contains(['*', '=']), "{text}");
        }
        for text in ["web-0", "/web-0", "default/", "", "a/b,,c", "=web"] {
            assert!(PodSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn narrower_choices_are_covered() {
        for (allowed, asked, expected) in [
            ("default/*", "default/web-0", true),
            ("default/*", "default/app=web", true),
            ("default/*", "app=web", false),
            ("default/*", "*/web-0", false),
            ("default/*", "[d]efault/web-0", false),
            ("*", "other/app=web", true),
            ("default/app=web", "default/app=web,tier=db", true),
            ("default/app=web", "default/web-0", false),
        ] {
            let [all, some] = [allowed, asked].map(|text| PodSelector::parse(text).expect(text));
            assert_eq!(all.covers(&some), expected, "{allowed} {asked}");
        }
    }

    #[test]
    fn comment_is_read_back() {
        let mut interface = Interface::default();
        assert_eq!(interface.pod(), None);
        interface.comments = vec!["a program".to_owned(), pod().comment()];
        let labels = "app=web,app.kubernetes.io/part-of=shop";
        assert_eq!(interface.pod(), Some(PodNote { name: "default/web-0", labels: Some(labels) }));
        let bare = Pod { labels: Labels::new(), ..pod() };
        interface.comments = vec![bare.comment()];
        assert_eq!(interface.pod(), Some(PodNote { name: "default/web-0", labels: None }));
    }
}
