//! Translated connections of the capture's network namespaces: passed to the chunker as blocks, and repeated in each chunk.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trawl_packet::pcapng::translations::{Translation, TranslationNews};
use trawl_sys::clock;
use trawl_sys::netlink::{Translated, TranslationEvent, Translations as Watch};
use trawl_sys::netns::Namespace;

/// Number of connections above which further ones are left out.
const MOST: usize = 65_536;
/// Time after which the thread looks whether the capture has ended.
const LOOK: Duration = Duration::from_millis(100);

/// The watched namespaces that have translated connections.
#[derive(Debug, Default)]
pub struct Watched(Vec<(Watch, Vec<Translated>)>);

impl Watched {
    /// Begins to watch, while the capture has the right to. A namespace that refuses it has no translations for the capture.
    pub fn begin<'a>(namespaces: impl Iterator<Item = Option<&'a Namespace>>) -> Self {
        let watched = namespaces.filter_map(|namespace| Watch::watch(namespace).ok().flatten());
        Self(watched.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Passes blocks on until the capture is over, the last ones included, or `send` fails.
    pub fn pass_on<E>(
        mut self,
        is_over: &AtomicBool,
        mut send: impl FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        for (_, known) in &mut self.0 {
            let begun = std::mem::take(known).into_iter();
            send(blocks(begun.map(TranslationEvent::Begun)))?;
        }
        let wait = LOOK / self.0.len().max(1) as u32;
        loop {
            let is_last = is_over.load(Ordering::Acquire);
            for (watch, _) in &mut self.0 {
                let wait = if is_last { Duration::ZERO } else { wait };
                while let Ok(events) = watch.events(wait)
                    && !events.is_empty()
                {
                    send(blocks(events.into_iter()))?;
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

fn blocks(events: impl Iterator<Item = TranslationEvent>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let time_ns = clock::wall();
    for event in events {
        let (of, ended) = match event {
            TranslationEvent::Begun(of) => (of, false),
            TranslationEvent::Ended(of) => (of, true),
        };
        let Translated {
            protocol,
            original,
            reply,
        } = of;
        let translation = Translation {
            protocol,
            original,
            reply,
        };
        let news = TranslationNews {
            translation,
            time_ns,
            ended,
        };
        news.write(&mut bytes);
    }
    bytes
}

/// The connections of the current chunk, as blocks.
#[derive(Debug, Default)]
pub struct Current {
    blocks: HashMap<Translation, Vec<u8>>,
    /// Connections that have ended: later chunks lack them.
    ended: Vec<Translation>,
}

impl Current {
    /// Adds news, and returns whether the open chunk lacks them.
    pub fn add(&mut self, news: &TranslationNews, block: &[u8]) -> bool {
        if news.ended {
            self.ended.push(news.translation);
            return false;
        }
        let has_room = self.blocks.len() < MOST;
        if has_room {
            self.blocks.insert(news.translation, block.to_vec());
        }
        has_room
    }

    /// Forgets the ended connections, whose packets the last chunk has.
    pub fn begin_chunk(&mut self) -> impl Iterator<Item = &Vec<u8>> {
        for ended in self.ended.drain(..) {
            self.blocks.remove(&ended);
        }
        self.blocks.values()
    }
}
