// SPDX-License-Identifier: Apache-2.0

// Command jaeger is the trace store that the tests run: Jaeger's memory storage behind OTLP/gRPC
// and Jaeger's query service before it. Its other backends are left out, so that it builds in a
// minute; the whole of Jaeger is more than twice as many packages as the Collector.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/jaegertracing/jaeger/cmd/query/app"
	"github.com/jaegertracing/jaeger/cmd/query/app/querysvc"
	"github.com/jaegertracing/jaeger/pkg/jtracer"
	"github.com/jaegertracing/jaeger/pkg/metrics"
	"github.com/jaegertracing/jaeger/pkg/telemetery"
	"github.com/jaegertracing/jaeger/pkg/tenancy"
	"github.com/jaegertracing/jaeger/plugin/storage/memory"
	"github.com/jaegertracing/jaeger/storage/spanstore"
	otlp2jaeger "github.com/open-telemetry/opentelemetry-collector-contrib/pkg/translator/jaeger"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const anyPort = "127.0.0.1:0"

// receiver writes what it gets before it answers: what was taken can be asked for.
type receiver struct {
	ptraceotlp.UnimplementedGRPCServer
	store spanstore.Writer
}

func (r *receiver) Export(
	ctx context.Context, request ptraceotlp.ExportRequest,
) (ptraceotlp.ExportResponse, error) {
	batches, err := otlp2jaeger.ProtoFromTraces(request.Traces())
	if err != nil {
		return ptraceotlp.NewExportResponse(), err
	}
	for _, batch := range batches {
		for _, span := range batch.Spans {
			if span.Process == nil { // The translation has it once for a batch.
				span.Process = batch.Process
			}
			if err := r.store.WriteSpan(ctx, span); err != nil {
				return ptraceotlp.NewExportResponse(), err
			}
		}
	}
	return ptraceotlp.NewExportResponse(), nil
}

func run(ctx context.Context) error {
	store := memory.NewStore()
	options := &app.QueryOptions{BasePath: "/"}
	options.HTTP.Endpoint, options.GRPC.NetAddr.Endpoint = anyPort, anyPort
	telemetry := telemetery.Setting{
		Logger:         zap.NewNop(),
		TracerProvider: jtracer.NoOp().OTEL,
		Metrics:        metrics.NullFactory,
		ReportStatus:   func(*componentstatus.Event) {},
	}
	service := querysvc.NewQueryService(store, store, querysvc.QueryServiceOptions{})
	query, err := app.NewServer(service, nil, options, tenancy.NewManager(&tenancy.Options{}), telemetry)
	if err != nil {
		return err
	}
	if err := query.Start(); err != nil {
		return err
	}
	defer query.Close()

	listener, err := net.Listen("tcp", anyPort)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	ptraceotlp.RegisterGRPCServer(server, &receiver{store: store})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	// The one line that its starter reads.
	fmt.Printf("{\"otlp_grpc\": %q, \"query_http\": %q}\n", listener.Addr(), query.HTTPAddr())
	return server.Serve(listener)
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "jaeger:", err)
		os.Exit(1)
	}
}
