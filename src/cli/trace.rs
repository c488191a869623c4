//! `--trace`: a Chrome trace with one span per node, named as its op.

use super::{Failure, Outcome};
use ssmgraph::engine::NodeTracer;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tracing::Span;
use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing_chrome::{ChromeLayerBuilder, EventOrSpan, FlushGuard};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::util::SubscriberInitExt;

/// A trace that is written while this lives. The end of the file is written when it is dropped.
pub struct Trace {
    // Dropped in this order: no more spans, then the rest of the file.
    _subscriber: DefaultGuard,
    _file: FlushGuard,
}

/// Starts a trace of this thread into a file.
///
/// Errors: a file that cannot be made.
pub fn start(path: &Path) -> Outcome<Trace> {
    let file = File::create(path).map_err(|error| Failure::Call(format!("{}: {error}", path.display())))?;
    let (chrome, guard) = ChromeLayerBuilder::new()
        .writer(file)
        .include_args(true)
        .name_fn(Box::new(|what| match what {
            EventOrSpan::Event(event) => event.metadata().name().to_owned(),
            EventOrSpan::Span(span) => {
                let named = span.extensions().get::<OpName>().map(|name| name.0.clone());
                named.unwrap_or_else(|| span.metadata().name().to_owned())
            }
        }))
        .build();
    let subscriber = Registry::default().with(NameLayer).with(chrome).set_default();
    Ok(Trace { _subscriber: subscriber, _file: guard })
}

/// Turns nodes into spans.
#[derive(Default)]
pub struct Tracer {
    open: Mutex<Option<Span>>,
}

impl NodeTracer for Tracer {
    fn begin(&self, op: &'static str, line: &str) {
        let span = tracing::info_span!("node", op, line);
        span.with_subscriber(|(id, subscriber)| subscriber.enter(id));
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(span);
    }

    fn end(&self) {
        if let Some(span) = self.open.lock().unwrap_or_else(PoisonError::into_inner).take() {
            span.with_subscriber(|(id, subscriber)| subscriber.exit(id));
        }
    }
}

/// The `op` of a span.
struct OpName(String);

impl Visit for OpName {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "op" {
            value.clone_into(&mut self.0);
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}

/// Notes the op of each span, because the name of a span itself is fixed when the program is compiled.
struct NameLayer;

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for NameLayer {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        id: &tracing::Id,
        context: Context<'_, S>,
    ) {
        let mut name = OpName(String::new());
        attributes.record(&mut name);
        if let Some(span) = context.span(id).filter(|_| !name.0.is_empty()) {
            span.extensions_mut().insert(name);
        }
    }
}
