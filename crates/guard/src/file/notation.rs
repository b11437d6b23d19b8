//! What stands in a rule file.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use crate::rule::{Action, IcmpType, Ports, Preset};
use crate::values::{self, MacPrefix, Prefix};

#[derive(Debug, serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "the names and values of a rule"
)]
pub struct Entry {
    pub action: ActionName,
    #[serde(default)]
    pub src: Many<Text<Prefix>>,
    /// A file with one prefix on each line.
    #[serde(default)]
    pub src_file: Option<Text<String>>,
    #[serde(default)]
    pub dst: Many<Text<Prefix>>,
    #[serde(default)]
    pub proto: Option<Protocol>,
    #[serde(default)]
    pub port: Many<Text<Ports>>,
    #[serde(default)]
    pub src_port: Many<Text<Ports>>,
    #[serde(default)]
    pub src_mac: Many<Text<MacPrefix>>,
    #[serde(default)]
    pub dst_mac: Many<Text<MacPrefix>>,
    #[serde(default)]
    pub icmp: Option<Icmp>,
    #[serde(default)]
    pub syn: bool,
    #[serde(default)]
    pub established: bool,
    #[serde(default)]
    pub all: bool,
    #[serde(default)]
    pub on: Option<Text<String>>,
    #[serde(default)]
    pub rate: Option<Rate>,
    #[serde(default, rename = "for")]
    pub lasts: Option<Lasts>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "the preset's name, as in `name = \"syn-flood\"`"
)]
pub struct PresetEntry {
    pub name: Text<Preset>,
    #[serde(default)]
    pub rate: Option<Rate>,
    #[serde(default)]
    pub on: Option<Text<String>>,
}

/// The default of an interface.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "the names name and default")]
pub struct InterfaceEntry {
    pub name: String,
    pub default: ActionName,
}

#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActionName {
    Deny,
    Allow,
}

impl From<ActionName> for Action {
    fn from(name: ActionName) -> Self {
        match name {
            ActionName::Deny => Self::Deny,
            ActionName::Allow => Self::Allow,
        }
    }
}

/// One, or a list of them.
#[derive(Debug)]
pub struct Many<T>(pub Vec<T>);

impl<T> Default for Many<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de> + FromScalar> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de> + FromScalar> Visitor<'de> for OneOrMore<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a value or a list of values")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
                T::from_scalar(text).map(|one| vec![one]).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Vec<T>, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Vec<T>, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = list.next_element()? {
                    all.push(one);
                }
                match all.is_empty() {
                    // It would be about everything, which nobody means by an empty list.
                    true => Err(de::Error::custom("the list is empty")),
                    false => Ok(all),
                }
            }
        }
        deserializer
            .deserialize_any(OneOrMore(std::marker::PhantomData))
            .map(Self)
    }
}

/// What can be read from a text or a number.
pub trait FromScalar: Sized {
    fn from_scalar(text: &str) -> Result<Self, String>;
}

/// Something with a text for people.
#[derive(Debug)]
pub struct Text<T>(pub T);

impl<T: FromStr<Err: Display>> FromScalar for Text<T> {
    fn from_scalar(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|e: T::Err| e.to_string())
    }
}

#[derive(Debug)]
pub struct Protocol(pub u8);

impl FromScalar for Protocol {
    fn from_scalar(text: &str) -> Result<Self, String> {
        values::protocol(text).map(Self)
    }
}

#[derive(Debug)]
pub struct Icmp(pub IcmpType);

impl FromScalar for Icmp {
    fn from_scalar(text: &str) -> Result<Self, String> {
        let (v4, v6) = values::icmp_type(text)?;
        Ok(Self(IcmpType { v4, v6 }))
    }
}

#[derive(Debug)]
pub struct Rate(pub u64);

impl FromScalar for Rate {
    fn from_scalar(text: &str) -> Result<Self, String> {
        values::rate(text).map(Self)
    }
}

#[derive(Debug)]
pub struct Lasts(pub Duration);

impl FromScalar for Lasts {
    fn from_scalar(text: &str) -> Result<Self, String> {
        values::duration(text).map(Self)
    }
}

struct Scalar<T>(std::marker::PhantomData<T>);

impl<T: FromScalar> Visitor<'_> for Scalar<T> {
    type Value = T;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text or a number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::from_scalar(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

macro_rules! scalars {
    ($($kind:ty),*) => {
        $(impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Scalar(std::marker::PhantomData))
            }
        })*
    };
}
scalars!(
    Text<String>,
    Text<Prefix>,
    Text<Ports>,
    Text<MacPrefix>,
    Text<Preset>,
    Protocol,
    Icmp,
    Rate,
    Lasts
);
