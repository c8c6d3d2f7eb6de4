// The shape of a dashboard's file, put together from the types that Grafana publishes. Where those leave a part open, because a
// plugin defines it (options of a panel, `custom` settings of its fields), the published type of that plugin takes its place.

import type { Dashboard, DataQuery, FieldConfig, FieldConfigSource, Panel, RowPanel } from '@grafana/schema';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

/** A type as JSON holds it: the values of string enums in the place of the enums. */
type Json<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Json<T[K]> } : T;

/** A query of the Prometheus data source, as Grafana's documentation describes it: the published types do not have it. */
interface PrometheusQuery extends DataQuery {
  expr: string;
  legendFormat?: string;
  instant?: boolean;
  range?: boolean;
  exemplar?: boolean;
  interval?: string;
  format?: 'time_series' | 'table' | 'heatmap';
  editorMode?: 'code' | 'builder';
}

type PanelOf<Type, Options, Custom> = Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets'> & {
  type: Type;
  options: Options;
  fieldConfig: Omit<FieldConfigSource, 'defaults'> & { defaults: Omit<FieldConfig, 'custom'> & { custom?: Custom } };
  targets: PrometheusQuery[];
};

type AnyPanel = PanelOf<'stat', stat.Options, never> | PanelOf<'timeseries', timeseries.Options, timeseries.FieldConfig>;

type AnyRow = Omit<RowPanel, 'panels'> & { panels: AnyPanel[] };

export type Board = Json<Omit<Dashboard, 'panels'> & { panels: (AnyPanel | AnyRow)[] }>;
